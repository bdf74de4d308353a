// A search: the ranking, what became of the candidates, how the best was found, and what if.

function tunePage() {
  const tune = data.tune;
  const rows = tune.ranking.map((row, i) => ({ ...row, shown: data.names[i] }));
  if (rows.length) rankingSection(tune, rows);
  candidatesSection(tune);
  whatIfSection(tune);
  const parent = section("provenance", "What was searched");
  const space = Object.entries(tune.space).map(([key, values]) => [key, (Array.isArray(values) ? values : [values])
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ")]);
  parent.append(table([["key", true], ["values tried", true]], space));
  parent.append(el("p", { class: "note" }, `Documents: ${tune.study.trace}, ${grouped(tune.study.tokens)} tokens. All times are simulated. best.json is the winner as a study: run it with --out for its own report.`));
  contents();
}

function rankingSection(tune, rows) {
  const baseline = tune.baseline.metrics && tune.baseline.metrics.tokens_per_second_per_gpu;
  const shown = rows.concat(isNumber(baseline) ? [{ ...tune.baseline, shown: `${tune.baseline.label} on ${tune.baseline.layout_text} (the study’s, ${grouped(tune.baseline.gpus)} GPUs)`, isBaseline: true }] : []);
  const rate = (row) => row.metrics.tokens_per_second_per_gpu;
  const most = Math.max(...shown.map((row) => Math.max(rate(row), (rateInterval(row.metrics) || [0, 0])[1])));
  const parent = section("ranking", "The fastest candidates");
  parent.append(el("p", { class: "unit" }, "Tokens per second and GPU, speed-up over the study’s baseline with its 95 % interval. Simulated."));
  chart(parent, "Fastest candidates: " + shown.map((row) => `${row.shown} ${whole(rate(row))}`).join(", "), (host, width) => {
    const narrow = width < 640, tall = narrow ? 62 : 46;
    const svg = svgIn(host, width, shown.length * tall + 4);
    const x = d3.scaleLinear().domain([0, most]).range([0, width - 8]);
    const row = svg.selectAll("g").data(shown).join("g").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("class", (_, i) => (i === 0 ? "strong" : null)).attr("y", 15).text((r) => r.shown).call(fitText, narrow ? width - 8 : width * 0.66);
    row.append("text").attr("class", "value").attr("y", narrow ? 32 : 15).attr("x", narrow ? 0 : width - 8).attr("text-anchor", narrow ? "start" : "end")
      .text((r) => [whole(rate(r)), r.isBaseline ? "" : speedupText(r.metrics)].filter(Boolean).join("  ·  "));
    row.append("rect").attr("y", tall - 24).attr("height", 13).attr("rx", 2).attr("width", (r) => x(rate(r)))
      .style("fill", (r, i) => (r.isBaseline ? "var(--base)" : i === 0 ? "var(--p0)" : "var(--s2)"));
    row.filter((r) => !r.isBaseline && rateInterval(r.metrics)).append("line").attr("class", "whisker").attr("y1", tall - 17.5).attr("y2", tall - 17.5)
      .attr("x1", (r) => x(rateInterval(r.metrics)[0])).attr("x2", (r) => x(rateInterval(r.metrics)[1]));
  });
  behind(parent, [["candidate", true], ["tokens/s/GPU", false], ["speed-up", false], ["step s", false], ["MFU %", false], ["bubble %", false], ["delay", false], ["most memory GiB", false]],
    rows.map((row) => [row.shown, whole(rate(row)), speedupText(row.metrics) || "–", fixedOr(row.metrics.step_seconds, 3),
      fixedOr(row.metrics.mfu * 100, 1), fixedOr(row.metrics.bubble_ratio * 100, 1), fixedOr(row.metrics.token_delay_mean, 2), gib(row.metrics.peak_memory_bytes)])).open = true;
}

const kFates = [["ok", "run to the end", "var(--s3)"], ["slower", "run until proven slower", "var(--s1)"], ["bound", "slower by their bound", "var(--c0)"],
  ["oom", "out of memory", "var(--c1)"], ["states", "states alone do not fit", "var(--c2)"], ["refused", "refused", "var(--c5)"],
  ["unplaceable", "cannot place a document", "var(--c7)"], ["late", "over --max-delay", "var(--c8)"], ["left", "not reached", "var(--c9)"]];

function candidatesSection(tune) {
  const counts = { ...tune.counts.outcomes, bound: tune.counts.slower_by_bound, states: tune.counts.states_do_not_fit, left: tune.counts.not_reached };
  const fates = kFates.filter(([key]) => counts[key] > 0);
  if (!fates.length) return;
  const all = tune.counts.candidates;
  const parent = section("candidates", "What became of the candidates");
  parent.append(legend(fates.map(([, name, colour]) => [name, colour])));
  stackedRows(parent, "Fates of the candidates", [{ label: `${grouped(all)} candidates`, parts: fates.map(([key, name]) =>
    ({ name, share: counts[key] / all, text: `${grouped(counts[key])}, ${percent(counts[key] / all)}` })) }],
  (name) => kFates.find((fate) => fate[1] === name)[2]);
  behind(parent, [["fate", true], ["candidates", false]], fates.map(([key, name]) => [name, grouped(counts[key])]));
  progressChart(parent, tune);
}

// Tokens a second of what ran to its end, in the order of the search, and the best so far.
function progressChart(parent, tune) {
  const ran = data.ran.map(([i, time]) => ({ i, rate: 1 / time / tune.study.gpus }));
  if (ran.length < 2) return;
  parent.append(el("h3", {}, "How the best was found"));
  chart(parent, "Best so far over the candidates in the order in which they were tried", (host, width) => {
    const height = 220, left = 52, bottom = 38;
    const svg = svgIn(host, width, height);
    const x = d3.scaleLinear().domain([0, tune.counts.tried]).range([left, width - 16]);
    const y = d3.scaleLinear().domain([0, Math.max(...ran.map((one) => one.rate))]).nice(4).range([height - bottom, 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(4, "~r").tickSize(-(width - left - 16)));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`).call(d3.axisBottom(x).ticks(5).tickSize(0).tickPadding(8));
    svg.append("text").attr("class", "soft").attr("x", width - 16).attr("y", height - 4).attr("text-anchor", "end").text("candidates tried; tokens/s/GPU");
    svg.selectAll("circle").data(ran).join("circle").attr("cx", (one) => x(one.i)).attr("cy", (one) => y(one.rate)).attr("r", 2.5)
      .style("fill", "var(--base)").style("fill-opacity", 0.6);
    let best = 0;
    const steps = ran.map((one) => [one.i, (best = Math.max(best, one.rate))]).concat([[tune.counts.tried, best]]);
    svg.append("path").attr("d", d3.line().x((p) => x(p[0])).y((p) => y(p[1])).curve(d3.curveStepAfter)(steps)).style("fill", "none").style("stroke", "var(--p0)").style("stroke-width", 2.5);
  });
}

function whatIfSection(tune) {
  if (!tune.what_if.length) return;
  const parent = section("what_if", "What if", "The winner on another machine or with other costs, against the best of the others.");
  parent.append(table([["if", true], ["then", true], ["winner s/M tokens", false], ["rival s/M tokens", false]], tune.what_if.map((what) => [what.change,
    !what.winner_runs ? `the winner does not run: ${what.reason}` : what.stays ? "it stays the fastest" : `${what.rival} is faster`,
    isNumber(what.winner_seconds_per_token) ? (what.winner_seconds_per_token * 1e6).toFixed(3) : "–",
    isNumber(what.rival_seconds_per_token) ? (what.rival_seconds_per_token * 1e6).toFixed(3) : "–"])));
}
