// A search: the ranking, the map of layouts, what speed costs in delay and memory, what each choice is worth, what
// became of the candidates, how the best was found, and what if.

function tunePage() {
  const tune = data.tune;
  const rows = tune.ranking.map((row, i) => ({ ...row, shown: data.names[i] }));
  const found = triedCandidates(tune);
  const sides = [["the winner", tune.ranking[0]], ["the study’s baseline", tune.baseline]].filter(([, row]) => row);
  if (rows.length) rankingSection(tune, rows);
  layoutMap(found);
  frontierSection(found);
  choicesSection(found);
  whatIfSection(tune);
  candidatesSection(tune, found);
  notesSection(sides.map(([name, row]) => [name, beyondOf(row)]), notesOf(sides.map(([name, row]) => [name, notesIn(row.study_notes, [row])])));
  const parent = section("provenance", "What was searched");
  const space = Object.entries(tune.space).map(([key, values]) => [key, (Array.isArray(values) ? values : [values])
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ")]);
  parent.append(table([["key", true], ["values tried", true]], space));
  parent.append(el("p", { class: "note" }, `Documents: ${tune.study.trace}, ${grouped(tune.study.tokens)} tokens. All times are simulated. best.json is a study of the winner next to this study’s own rows on the same layout: run it with --out for its own report.`));
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
  behind(parent, [["candidate", true], ["tokens/s/GPU", false], ["speed-up", false], ["step s", false], ["MFU %", false], ["bubble %", false], ["delay", false], ["most memory GiB", false], ["beyond samples %", false]],
    rows.map((row) => [row.shown, whole(rate(row)), speedupText(row.metrics) || "–", fixedOr(row.metrics.step_seconds, 3),
      fixedOr(row.metrics.mfu * 100, 1), fixedOr(row.metrics.bubble_ratio * 100, 1), fixedOr(row.metrics.token_delay_mean, 2), gib(row.metrics.peak_memory_bytes), fixedOr(100 * (beyondOf(row) ?? NaN), 1)])).open = true;
}

// The tried candidates, each with its layout, its name and its speed.
function triedCandidates(tune) {
  const { outcomes, keys, rows, layouts, trials, too_large, reasons } = data.search;
  const layoutOf = layouts.map(([tensor, context, pipeline, replicas, expert, values]) =>
    ({ tensor, context, pipeline, replicas, expert, values: Object.fromEntries(keys.map((key, i) => [key, values[i]])) }));
  const degrees = ["tensor", "context", "pipeline", "data", "expert"].map((key) => "parallel." + key);
  const nameOf = (layout) => [`TP ${layout.tensor}, CP ${layout.context}, PP ${layout.pipeline}, DP ${layout.replicas}`, layout.expert > 1 ? `EP ${layout.expert}` : "",
    ...keys.filter((key) => !degrees.includes(key) && layout.values[key] !== null).map((key) => `${shortKey(key)} ${layout.values[key]}`)].filter(Boolean).join(", ");
  const list = trials.map(([place, layout, row, outcome, time, delay, peak, reason]) => ({
    place, layout: layoutOf[layout], row: rows[row][0], policy: rows[row][1], name: `${rows[row][0]} on ${nameOf(layoutOf[layout])}`, outcome: outcomes[outcome], delay, peak,
    rate: outcomes[outcome] === "ok" ? 1 / time / tune.study.gpus : null, reason: reason === null ? "" : reasons[reason] }));
  const large = too_large.map(([layout, reason]) => ({ layout: layoutOf[layout], reason: reason === null ? "" : reasons[reason] }));
  return { list, ran: list.filter((one) => isNumber(one.rate)), large, keys };
}

// Why a layout does not run: a word for its cell, and what that word means.
const kWhyNot = { slower: ["slower", "its candidates run, but are proven slower"], oom: ["memory", "out of memory"], states: ["states", "parameters, gradients and optimizer states alone do not fit"],
  dropped: ["dropped", "its candidates ran on few steps, and others were faster there"],
  unplaceable: ["length", "a document is too long to be placed"], refused: ["refused", "the study does not take the layout"], late: ["late", "its documents wait longer than --max-delay"] };

// Maps of degrees, one per TP degree: CP down, PP across, DP as what remains. A cell shows the best of all
// other choices that were tried.
function layoutMap(found) {
  const cells = new Map();
  const cellOf = (layout) => {
    const key = [layout.tensor, layout.context, layout.pipeline, layout.replicas].join(" ");
    if (!cells.has(key)) cells.set(key, { ...layout, best: null, fates: {}, why: {} });
    return cells.get(key);
  };
  for (const one of found.list) {
    const cell = cellOf(one.layout);
    cell.fates[one.outcome] = (cell.fates[one.outcome] || 0) + 1;
    if (one.reason && !cell.why[one.outcome]) cell.why[one.outcome] = one.reason;
    if (isNumber(one.rate) && (!cell.best || one.rate > cell.best.rate)) cell.best = one;
  }
  for (const one of found.large) {
    const cell = cellOf(one.layout);
    cell.fates.states = (cell.fates.states || 0) + 1;
    cell.why.states = cell.why.states || one.reason;
  }
  const all = [...cells.values()].sort((a, b) => a.tensor - b.tensor || a.context - b.context || a.pipeline - b.pipeline);
  if (all.length < 2) return;
  const rates = all.filter((cell) => cell.best).map((cell) => cell.best.rate);
  const low = rates.reduce((a, b) => Math.min(a, b), Infinity), high = largest(rates);
  const parent = section("layouts", "Which layouts run, and how fast",
    "The fastest candidate of each layout, in tokens/s/GPU; where none ran to its end, why. What is empty was not tried: it does not go together, its bound says that it is slower, or the search ended first.");
  const why = (cell) => (cell.best ? undefined : Object.keys(kWhyNot).find((fate) => cell.fates[fate]));
  const counts = (cell) => Object.entries(cell.fates).map(([fate, n]) => `${grouped(n)} ${fate === "states" ? "layouts whose states do not fit" : fate}`).join(", ");
  const text = (cell) => [cell.best ? whole(cell.best.rate) : why(cell) ? kWhyNot[why(cell)][0] : "–", `DP ${cell.replicas}`];
  const words = Object.keys(kWhyNot).filter((fate) => all.some((cell) => why(cell) === fate));
  if (words.length) parent.append(el("p", { class: "note words" }, words.map((fate) => kWhyNot[fate].join(": ")).join("; ") + "."));
  const lines = (cell) => [`TP ${cell.tensor}, CP ${cell.context}, PP ${cell.pipeline}, DP ${cell.replicas}`, cell.best ? `${whole(cell.best.rate)} tokens/s/GPU: ${cell.best.name}` : why(cell) ? kWhyNot[why(cell)].join(": ") : "",
    counts(cell), ...Object.entries(cell.why).map(([fate, reason]) => `${fate}: ${reason}`)];
  const panels = el("div", { class: "panels wide" });
  parent.append(panels);
  for (const tensor of [...new Set(all.map((cell) => cell.tensor))]) {
    const own = all.filter((cell) => cell.tensor === tensor);
    const of = (key) => [...new Set(own.map((cell) => cell[key]))].sort((a, b) => a - b);
    const panel = el("div", {}, el("h3", {}, `TP ${tensor}`));
    panels.append(panel);
    chart(panel, `Layouts of TP ${tensor}: ` + own.map((cell) => `CP ${cell.context} PP ${cell.pipeline} ${text(cell)[0]}`).join("; "), (host, width) => heatMap(host, width, of("pipeline"), of("context"), own.map((cell) => ({
      x: cell.pipeline, y: cell.context, text: text(cell), lines: lines(cell), fill: cell.best ? heat(high > low ? (cell.best.rate - low) / (high - low) : 1) : null })), "PP", "CP"));
  }
  const made = table([["layout", true], ["tokens/s/GPU", false], ["fastest candidate", true], ["candidates", true], ["why not", true]], all.map((cell) => [`TP ${cell.tensor}, CP ${cell.context}, PP ${cell.pipeline}, DP ${cell.replicas}`,
    cell.best ? whole(cell.best.rate) : "–", cell.best ? cell.best.name : "–", counts(cell), Object.entries(cell.why).map(([fate, reason]) => `${fate}: ${reason}`).join("; ") || "–"]));
  makeSortable(made.querySelector("table"));
  parent.append(el("details", { open: !hasCharts }, el("summary", {}, "Figures and reasons"), made));
}

// The candidates that nothing faster beats in a token's delay, or in a GPU's memory.
function frontierOf(ran, cost) {
  const list = ran.filter((one) => isNumber(one[cost])).sort((a, b) => b.rate - a.rate || a[cost] - b[cost]);
  let least = Infinity;
  return list.filter((one) => one[cost] < least && ((least = one[cost]), true));
}

function frontierSection(found) {
  const kinds = [["delay", "Steps that a token waits, on the mean", 1, 2], ["peak", "Most memory of a GPU, GiB", 2 ** -30, 1]]
    .map(([key, title, scale, digits]) => ({ key, title, scale, digits, front: frontierOf(found.ran, key) }))
    .filter((kind) => new Set(found.ran.map((one) => one[kind.key]).filter(isNumber)).size > 1);
  if (!kinds.length) return;
  const parent = section("frontier", "What speed costs", "Each candidate that ran to its end, a dot; the line joins those that none beats in both. The search ends a candidate once it is proven slower than the tenth best: slower ones with less delay or memory may exist that no dot shows, and --max-delay finds those of a bound.");
  const panels = el("div", { class: "panels" });
  parent.append(panels);
  for (const kind of kinds) {
    const panel = el("div", {}, el("h3", {}, kind.title));
    panels.append(panel);
    const own = found.ran.filter((one) => isNumber(one[kind.key]));
    const lines = (one) => [one.name, `${whole(one.rate)} tokens/s/GPU`, `${(one[kind.key] * kind.scale).toFixed(kind.digits)} ${kind.key === "delay" ? "steps of delay" : "GiB"}`];
    chart(panel, `Throughput by ${kind.title}: ` + kind.front.map((one) => `${whole(one.rate)} at ${(one[kind.key] * kind.scale).toFixed(kind.digits)}`).join(", "), (host, width) => {
      const height = 260, left = 52, bottom = 40;
      const svg = svgIn(host, width, height);
      const x = d3.scaleLinear().domain([0, largest(own.map((one) => one[kind.key] * kind.scale))]).nice(5).range([left, width - 14]);
      const y = d3.scaleLinear().domain(d3.extent(own, (one) => one.rate)).nice(4).range([height - bottom, 10]);
      svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(4, "~r").tickSize(-(width - left - 14)));
      svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`).call(d3.axisBottom(x).ticks(5).tickSize(0).tickPadding(8));
      svg.append("text").attr("class", "soft").attr("x", width - 12).attr("y", height - 4).attr("text-anchor", "end").text("tokens/s/GPU above");
      const at = (one) => [x(one[kind.key] * kind.scale), y(one.rate)];
      svg.append("path").attr("d", d3.line().x((one) => at(one)[0]).y((one) => at(one)[1]).curve(d3.curveStepBefore)(kind.front)).style("fill", "none").style("stroke", "var(--p0)").style("stroke-width", 2);
      const dots = svg.selectAll("circle").data(own).join("circle").attr("cx", (one) => at(one)[0]).attr("cy", (one) => at(one)[1]).attr("r", (one) => (kind.front.includes(one) ? 5 : 3))
        .style("fill", (one) => (kind.front.includes(one) ? "var(--p0)" : "var(--base)")).style("fill-opacity", (one) => (kind.front.includes(one) ? 1 : 0.5));
      tooltips(dots, lines);
    });
    behind(panel, [["candidate", true], ["tokens/s/GPU", false], [kind.key === "delay" ? "delay" : "GiB", false]], kind.front.map((one) => [one.name, whole(one.rate), (one[kind.key] * kind.scale).toFixed(kind.digits)]), "The frontier");
  }
}

// Writes each dot's value below it, best first, unless it covers another; tooltip and table have all.
function nameDots(row, valued, at, y, width) {
  row.each(function (datum) {
    const taken = [];
    for (const v of valued(datum).sort((a, b) => b.share - a.share)) {
      const name = d3.select(this).append("text").attr("class", "dot soft").attr("y", y).text(v.value).call(fitText, width * 0.4);
      const wide = name.node().getComputedTextLength(), from = Math.max(0, Math.min(width - wide, at(v) - wide / 2));
      if (taken.some(([first, last]) => from < last + 8 && from + wide + 8 > first)) name.remove();
      else taken.push([from, from + wide]);
      name.attr("x", from);
    }
  });
}

// The best result with each value of a key and all other keys free: what the choice of that value costs.
function choicesSection(found) {
  if (found.ran.length < 2) return;
  const best = largest(found.ran.map((one) => one.rate));
  const valuesOf = (valueOf) => {
    const known = new Map();
    for (const one of found.ran) if (valueOf(one) !== null && !(known.has(valueOf(one)) && known.get(valueOf(one)).rate >= one.rate)) known.set(valueOf(one), one);
    return orderedValues([...known.keys()]).map((value) => ({ value, one: known.get(value), share: known.get(value).rate / best }));
  };
  const keys = [["policy", valuesOf((one) => one.policy)], ...found.keys.filter((key) => key !== "parallel.data").map((key) => [shortKey(key), valuesOf((one) => one.layout.values[key])]),
    ["data", valuesOf((one) => String(one.layout.replicas))]].filter(([, values]) => values.length > 1);
  if (!keys.length) return;
  const parent = section("choices", "What each choice is worth", "The fastest candidate that ran to its end with each value, all other keys free, over the fastest of all. A key whose dots lie close together matters little here; a value without a dot never came among the fastest. A dot without room for its name has it in the table and under the pointer.");
  const low = Math.min(0.95, ...keys.flatMap(([, values]) => values.map((v) => v.share)));
  chart(parent, "Best with each value over the best of all: " + keys.map(([key, values]) => `${key} ${values.map((v) => `${v.value} ${percent(v.share, 0)}`).join(", ")}`).join("; "), (host, width) => {
    const tall = 58;
    const svg = svgIn(host, width, keys.length * tall + 26);
    const x = d3.scaleLinear().domain([low, 1]).nice(5).range([14, width - 18]), ticks = x.ticks(width < 500 ? 4 : 8);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${keys.length * tall})`).call(d3.axisBottom(x).tickValues(ticks).tickFormat((v) => percent(v, 0)).tickSize(0).tickPadding(6))
      .selectAll("text").attr("text-anchor", (v) => (x(v) < 24 ? "start" : x(v) > width - 24 ? "end" : "middle"));
    const row = svg.selectAll("g.row").data(keys).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    // Grid lines only where dots are, so that no line crosses a name.
    row.append("g").attr("class", "axis").selectAll("line").data(ticks).join("line").attr("x1", x).attr("x2", x).attr("y1", 20).attr("y2", 37);
    row.append("text").attr("y", 14).text(([key]) => key).call(fitText, width * 0.4);
    row.append("text").attr("class", "soft").attr("y", 14).attr("x", width - 4).attr("text-anchor", "end").text(([, values]) => "best: " + values.reduce((a, b) => (b.share > a.share ? b : a)).value).call(fitText, width * 0.55);
    const valued = ([key, values]) => values.map((v) => ({ ...v, key }));
    nameDots(row, valued, (v) => x(v.share), 51, width);
    const dots = row.selectAll("circle").data(valued).join("circle").attr("cx", (v) => x(v.share)).attr("cy", 29).attr("r", 5)
      .style("fill", (v) => (v.share === 1 ? "var(--p0)" : "var(--s2)"));
    tooltips(dots, (v) => [`${v.key} ${v.value}: ${percent(v.share)} of the best`, `${whole(v.one.rate)} tokens/s/GPU`, v.one.name]);
  });
  behind(parent, [["key", true], ["value", true], ["tokens/s/GPU", false], ["of the best", false], ["candidate", true]], keys.flatMap(([key, values]) => values.map((v) => [key, v.value, whole(v.one.rate), percent(v.share), v.one.name])));
}

const kFates = [["ok", "run to the end", "var(--s3)"], ["slower", "run until proven slower", "var(--s1)"], ["dropped", "dropped after few steps", "var(--s2)"], ["bound", "slower by their bound", "var(--c0)"],
  ["oom", "out of memory", "var(--c1)"], ["states", "states alone do not fit", "var(--c2)"], ["refused", "refused", "var(--c5)"],
  ["unplaceable", "cannot place a document", "var(--c7)"], ["late", "over --max-delay", "var(--c8)"], ["left", "not reached", "var(--c9)"]];

function candidatesSection(tune, found) {
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
  progressChart(parent, tune, found);
}

// Tokens per second of finished candidates, in the order of the search, and the best so far.
function progressChart(parent, tune, found) {
  const ran = found.ran.map((one) => ({ i: one.place, rate: one.rate }));
  if (ran.length < 2) return;
  parent.append(el("h3", {}, "How the best was found"));
  chart(parent, "Best so far over the candidates in the order in which they were tried", (host, width) => {
    const height = 220, left = 52, bottom = 38;
    const svg = svgIn(host, width, height);
    const x = d3.scaleLinear().domain([0, tune.counts.tried]).range([left, width - 16]);
    const y = d3.scaleLinear().domain([0, largest(ran.map((one) => one.rate))]).nice(4).range([height - bottom, 8]);
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
