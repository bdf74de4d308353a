// Simulated next to measured: steps by policy, kinds of ops, and the micro-batches with the largest errors.

const signed = (share) => (isNumber(share) ? (share >= 0 ? "+" : "−") + Math.abs(100 * share).toFixed(1) + " %" : "–");

function validationPage() {
  const v = data.validation;
  if (v.policies.length > 1) speedupsAgainst(v);
  if (v.policies.length) stepsAgainst(v);
  if (v.policies.some((p) => p.steps.length > 1)) stepByStep(v);
  if (v.ops.length) opsAgainst(v);
  if (v.micro_batches.count > 0) {
    const parent = section("micro_batches", "Micro-batches",
      `${grouped(v.micro_batches.count)} micro-batches are off by ${percent(v.micro_batches.mean_abs_error)} on average. The farthest:`);
    parent.append(table([["where", true], ["simulated", false], ["measured", false], ["error", false]], v.micro_batches.worst.map((m) =>
      [`${m.label}, step ${m.step}, lane ${m.lane}, micro-batch ${m.micro_batch}`, seconds(m.predicted_seconds), seconds(m.measured_seconds), signed(m.error)])));
  }
  notesSection(Object.entries(v.beyond_samples_share), noteTexts(v.notes));
  const parent = section("provenance", "Where the figures come from");
  parent.append(table([["figure", true], ["kind", true], ["from", true]], [
    ["simulated times", el("span", { class: "kind" }, "simulated"), `profile ${v.profile}`],
    ["measured times", el("span", { class: "kind" }, "measured"), v.device]]));
  parent.append(el("p", { class: "note" }, `An error is simulated / measured − 1; noise is half the 95 % interval of the measured median. Limits: step ${percent(v.limits.step)}, op kind by time ${percent(v.limits.op)}, the same ranking.`));
  contents();
}

// What a choice between policies rests on: each one's speed over the first, simulated above measured.
function speedupsAgainst(v) {
  const [first, ...rows] = v.policies;
  const parent = section("speedups", "Speed-ups, simulated and measured");
  parent.append(el("p", { class: "unit" }, `Speed over ${first.label}, by ${v.ranking.by}.`), legend([["simulated", "var(--p0)"], ["measured", "var(--base)"]]));
  const times = (speedup) => `${speedup.toFixed(2)}x`;
  const most = largest(rows.flatMap((p) => [p.predicted_speedup, p.measured_speedup, 1]));
  chart(parent, `Speed over ${first.label}: ` + rows.map((p) => `${p.label} ${times(p.predicted_speedup)} simulated, ${times(p.measured_speedup)} measured`).join("; "), (host, width) => {
    const tall = 58;
    const svg = svgIn(host, width, rows.length * tall + 44);
    const x = d3.scaleLinear().domain([0, most]).range([0, width - 14]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${rows.length * tall})`)
      .call(d3.axisBottom(x).ticks(width < 500 ? 3 : 6).tickFormat((t) => (t === 0 ? "0" : times(t))).tickSize(0).tickPadding(6))
      .selectAll("text").attr("text-anchor", (t) => (x(t) < 20 ? "start" : x(t) > width - 50 ? "end" : "middle"));
    axisTitle(svg, width, rows.length * tall + 38, `speed over ${first.label}`);
    const row = svg.selectAll("g.row").data(rows).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("y", 15).text((p) => p.label).call(fitText, width * 0.5);
    row.append("text").attr("class", "value").attr("x", width - 8).attr("y", 15).attr("text-anchor", "end").text((p) => `${times(p.predicted_speedup)}, measured ${times(p.measured_speedup)}`);
    row.append("rect").attr("y", 22).attr("height", 11).attr("width", (p) => x(p.predicted_speedup)).style("fill", "var(--p0)");
    row.append("rect").attr("y", 35).attr("height", 11).attr("width", (p) => x(p.measured_speedup)).style("fill", "var(--base)");
    svg.append("line").attr("class", "reference").attr("x1", x(1)).attr("x2", x(1)).attr("y1", 0).attr("y2", rows.length * tall);
  });
  behind(parent, [["policy", true], ["simulated", false], ["measured", false], ["error", false]],
    rows.map((p) => [p.label, times(p.predicted_speedup), times(p.measured_speedup), signed(p.predicted_speedup / p.measured_speedup - 1)]));
}

function stepsAgainst(v) {
  const parent = section("steps", "Steps, simulated and measured");
  parent.append(legend([["simulated", "var(--p0)"], [v.policies.some((p) => p.noise_seconds) ? "measured, with its noise" : "measured", "var(--base)"]]));
  const most = Math.max(...v.policies.map((p) => Math.max(p.predicted_seconds, p.measured_seconds + (p.noise_seconds || 0))));
  chart(parent, "Mean step by policy: " + v.policies.map((p) => `${p.label} ${signed(p.error)}`).join(", "), (host, width) => {
    const tall = 58;
    const svg = svgIn(host, width, v.policies.length * tall + 44);
    axisTitle(svg, width, v.policies.length * tall + 38, "seconds of a mean step");
    const x = d3.scaleLinear().domain([0, most]).range([0, width - 14]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${v.policies.length * tall})`)
      .call(d3.axisBottom(x).ticks(width < 500 ? 3 : 6).tickFormat((t) => (t === 0 ? "0" : seconds(t))).tickSize(0).tickPadding(6))
      .selectAll("text").attr("text-anchor", (t) => (x(t) < 20 ? "start" : x(t) > width - 50 ? "end" : "middle"));
    const row = svg.selectAll("g.row").data(v.policies).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("y", 15).text((p) => p.label).call(fitText, width * 0.6);
    row.append("text").attr("class", "value").attr("x", width - 8).attr("y", 15).attr("text-anchor", "end").text((p) => signed(p.error));
    row.append("rect").attr("y", 22).attr("height", 11).attr("width", (p) => x(p.predicted_seconds)).style("fill", "var(--p0)");
    row.append("rect").attr("y", 35).attr("height", 11).attr("width", (p) => x(p.measured_seconds)).style("fill", "var(--base)");
    row.filter((p) => p.noise_seconds).append("line").attr("class", "whisker").attr("y1", 40.5).attr("y2", 40.5)
      .attr("x1", (p) => x(p.measured_seconds - p.noise_seconds)).attr("x2", (p) => x(p.measured_seconds + p.noise_seconds));
  });
  behind(parent, [["policy", true], ["simulated", false], ["measured", false], ["noise", false], ["error", false], ["profile alone", false], ["steps", false]],
    v.policies.map((p) => [p.label, seconds(p.predicted_seconds), seconds(p.measured_seconds), seconds(p.noise_seconds), signed(p.error), signed(p.error_of_profile_alone), String(p.steps.length)])).open = true;
}

// Each step's error, in the band that limits a policy's mean step. A whisker shows the spread of repetitions.
function stepByStep(v) {
  const policies = v.policies.filter((p) => p.steps.length);
  colourOf = colourer(policies.map((p) => p.label), null);
  const all = policies.flatMap((p) => p.steps.map((s) => ({ ...s, label: p.label, noise: s.noise_seconds ? (s.predicted_seconds / s.measured_seconds) * (s.noise_seconds / s.measured_seconds) : 0 })));
  const parent = section("by_step", "Error of each step", `Simulated over measured − 1. The band is the limit of a policy’s mean, ${percent(v.limits.step)}; a single step may lie outside of it.`);
  parent.append(legend(policies.map((p) => [p.label, colourOf(p.label)])));
  const most = Math.max(v.limits.step * 1.3, ...all.map((s) => Math.abs(s.error) + s.noise));
  chart(parent, "Error of each step: " + policies.map((p) => `${p.label} mean of absolute ${percent(p.mean_abs_step_error)}, worst ${signed(p.worst_step_error)}`).join("; "), (host, width) => {
    const height = 280, left = 62, bottom = 40;
    const svg = svgIn(host, width, height);
    const x = d3.scaleLinear().domain(d3.extent(all, (s) => s.step)).range([left + 12, width - 16]);
    const y = d3.scaleLinear().domain([-most, most]).nice(4).range([height - bottom, 8]);
    svg.append("rect").attr("x", left).attr("width", width - left - 4).attr("y", y(v.limits.step)).attr("height", y(-v.limits.step) - y(v.limits.step)).style("fill", "var(--faint)");
    svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(5).tickFormat(signed).tickSize(-(width - left - 4)));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`).call(d3.axisBottom(x).ticks(width < 500 ? 4 : 10).tickFormat((s) => (Number.isInteger(s) ? s : "")).tickSize(0).tickPadding(8));
    axisTitle(svg, width, height - 4, "step");
    svg.append("line").attr("class", "reference").attr("x1", left).attr("x2", width - 4).attr("y1", y(0)).attr("y2", y(0));
    svg.selectAll("line.noise").data(all.filter((s) => s.noise > 0)).join("line").attr("class", "noise").attr("x1", (s) => x(s.step)).attr("x2", (s) => x(s.step))
      .attr("y1", (s) => y(s.error - s.noise)).attr("y2", (s) => y(s.error + s.noise)).style("stroke", (s) => colourOf(s.label));
    const dots = svg.selectAll("circle").data(all).join("circle").attr("cx", (s) => x(s.step)).attr("cy", (s) => y(s.error)).attr("r", all.length > 400 ? 2.5 : 4).style("fill", (s) => colourOf(s.label)).style("fill-opacity", 0.75);
    tooltips(dots, (s) => [`${s.label}, step ${s.step}: ${signed(s.error)}`, `${seconds(s.predicted_seconds)} simulated, ${seconds(s.measured_seconds)} measured`, s.noise ? `measured within ${seconds(s.noise_seconds)}` : ""]);
  });
  const made = table([["policy", true], ["step", false], ["simulated", false], ["measured", false], ["noise", false], ["error %", false]],
    all.map((s) => [s.label, String(s.step), seconds(s.predicted_seconds), seconds(s.measured_seconds), seconds(s.noise_seconds), (100 * s.error).toFixed(2)]));
  makeSortable(made.querySelector("table"));
  parent.append(el("details", { open: !hasCharts }, el("summary", {}, "Figures"), made));
}

function opsAgainst(v) {
  const parent = section("ops", "Kinds of op", `Error of each kind’s time; the band is its limit, ${percent(v.limits.op)}.`);
  const shown = v.ops;
  const most = Math.max(v.limits.op * 1.3, ...shown.map((op) => Math.abs(op.error || 0)));
  chart(parent, "Errors by kind of op: " + shown.map((op) => `${op.op} ${signed(op.error)}`).join(", "), (host, width) => {
    const tall = 26, left = Math.min(190, width * 0.42);
    const svg = svgIn(host, width, shown.length * tall + 44);
    axisTitle(svg, width, shown.length * tall + 40, "simulated / measured − 1");
    const x = d3.scaleLinear().domain([-most, most]).nice(3).range([left, width - 32]);
    svg.append("rect").attr("x", x(-v.limits.op)).attr("width", x(v.limits.op) - x(-v.limits.op)).attr("y", 0).attr("height", shown.length * tall).style("fill", "var(--faint)");
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${shown.length * tall})`).call(d3.axisBottom(x).ticks(width < 500 ? 3 : 7).tickFormat((e) => signed(e)).tickSize(-shown.length * tall));
    const row = svg.selectAll("g.row").data(shown).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("y", 17).text((op) => op.op).call(fitText, left - 8);
    row.append("line").attr("class", "reference").attr("x1", x(0)).attr("x2", (op) => x(op.error || 0)).attr("y1", 13).attr("y2", 13);
    const dots = row.append("circle").attr("cx", (op) => x(op.error || 0)).attr("cy", 13).attr("r", 5).style("fill", (op) => (op.within_limit ? "var(--p0)" : "var(--bad)"));
    tooltips(dots, (op) => [op.op, `${signed(op.error)} of ${seconds(op.measured_seconds)} measured`, `${grouped(op.count)} ops, mean |error| ${percent(op.mean_abs_error)}`]);
  });
  behind(parent, [["op", true], ["count", false], ["simulated", false], ["measured", false], ["error", false], ["profile alone", false], ["mean |error|", false]],
    v.ops.map((op) => [op.op, grouped(op.count), seconds(op.predicted_seconds), seconds(op.measured_seconds), signed(op.error), signed(op.error_of_profile_alone), percent(op.mean_abs_error)]));
}
