// A sweep: one line a policy over the values of a key, the other keys held.

function assignmentsOf(one) {
  return Object.fromEntries(one.assignments.map((text) => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]));
}

function sizeOf(text) {
  const found = /^(-?[0-9.]+)([KM]?)$/.exec(text);
  return found ? Number(found[1]) * { "": 1, K: 1024, M: 2 ** 20 }[found[2]] : NaN;
}

const kSweepMetrics = [["tokens_per_second_per_gpu", "Tokens per second and GPU"], ["speedup", "Speed-up over the baseline"],
  ["step_seconds", "Seconds a step"], ["peak_memory_bytes", "Most memory of a GPU, GiB"]];

function sweepPage() {
  const cases = data.cases.map((one) => ({ ...one, values: assignmentsOf(one) }));
  const labels = [...new Set(cases.flatMap((one) => one.rows.map((row) => row.label)))];
  colourOf = colourer(labels, cases[0].baseline);
  const keys = [...new Set(cases.flatMap((one) => Object.keys(one.values)))]
    .filter((key) => new Set(cases.map((one) => one.values[key])).size > 1);
  const valuesOf = (key) => [...new Set(cases.map((one) => one.values[key]))];
  if (keys.length) sweepLines(cases, labels, keys, valuesOf);
  const parent = section("cases", "All cases", "All figures are simulated; the page of a case says from what.");
  const shown = keys.length ? keys : Object.keys(cases[0].values);
  parent.append(table([...shown.map((key) => [key.slice(key.lastIndexOf(".") + 1).replaceAll("_", " "), true]), ["policy", true], ["status", true], ["tokens/s/GPU", false], ["speed-up", false], ["step s", false], ["memory GiB", false]],
    cases.flatMap((one) => one.rows.map((row) => [
      ...shown.map((key, i) => (i ? one.values[key] : el("a", { href: encodeURIComponent(one.folder) + "/report.html" }, one.values[key]))), row.label, row.status,
      isNumber(row.tokens_per_second_per_gpu) ? whole(row.tokens_per_second_per_gpu) : "–", speedupText(row) || "–", fixedOr(row.step_seconds, 3),
      isNumber(row.peak_memory_bytes) ? gib(row.peak_memory_bytes) : "–"]))));
  const reasons = cases.flatMap((one) => one.rows.filter((row) => row.reason).map((row) => `${one.assignments.join(" ")}: ${row.label}: ${row.reason}`));
  if (reasons.length) parent.append(el("h3", {}, "Rows that did not run, or do not fit"), ...reasons.map((reason) => el("p", { class: "reason" }, reason)));
}

function sweepLines(cases, labels, keys, valuesOf) {
  const parent = section("sweep", "One line a policy");
  const state = { x: keys.reduce((a, b) => (valuesOf(b).length > valuesOf(a).length ? b : a)), metric: kSweepMetrics[0][0] };
  for (const key of keys) state[key] = valuesOf(key)[0];
  const controls = el("div", { class: "controls" });
  parent.append(controls, legend(labels.map((label) => [label, colourOf(label)])));
  const redraw = chart(parent, "Figures over the swept key, a line a policy", (host, width) => drawSweep(host, width, cases, labels, state, keys, valuesOf));
  const show = () => {
    const act = (key) => (value) => { state[key] = value; show(); };
    renew(controls, select("Figure", kSweepMetrics, state.metric, act("metric")),
      ...(keys.length > 1 ? [select("Over", keys.map((key) => [key, key]), state.x, act("x"))] : []),
      ...keys.filter((key) => key !== state.x).map((key) => select(key, valuesOf(key).map((v) => [v, v]), state[key], act(key))));
    if (redraw) redraw();
  };
  show();
}

function drawSweep(host, width, cases, labels, state, keys, valuesOf) {
  const held = cases.filter((one) => keys.every((key) => key === state.x || one.values[key] === state[key]));
  const values = valuesOf(state.x);
  const scale = state.metric === "peak_memory_bytes" ? 2 ** -30 : 1;
  const numeric = values.every((value) => Number.isFinite(sizeOf(value)) && sizeOf(value) > 0) && values.length > 1;
  const ordered = numeric ? values.slice().sort((a, b) => sizeOf(a) - sizeOf(b)) : values;
  const height = 320, left = 52, bottom = 44;
  const every = Math.ceil(ordered.length * (12 + 7 * Math.max(...ordered.map((value) => String(value).length))) / (width - left));
  const svg = svgIn(host, width, height);
  const x = d3.scalePoint().domain(ordered).range([left, width - 12]).padding(0.3);
  const lines = labels.map((label) => ({ label, points: ordered.map((value) => {
    const one = held.find((c) => c.values[state.x] === value);
    const row = one && one.rows.find((r) => r.label === label);
    return { value, row, label, y: row && isNumber(row[state.metric]) ? row[state.metric] * scale : null };
  }) }));
  const all = lines.flatMap((line) => line.points.filter((p) => p.y !== null).map((p) => p.y));
  if (!all.length) return;
  const y = d3.scaleLinear().domain([0, Math.max(...all)]).nice(5).range([height - bottom, 10]);
  svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(5, "~r").tickSize(-(width - left - 12)));
  svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`)
    .call(d3.axisBottom(x).tickFormat((value, i) => (i % every === 0 ? value : "")).tickSize(0).tickPadding(8));
  svg.append("text").attr("class", "soft").attr("x", width - 12).attr("y", height - 6).attr("text-anchor", "end").text(state.x);
  const path = d3.line().defined((p) => p.y !== null).x((p) => x(p.value)).y((p) => y(p.y));
  for (const line of lines) {
    svg.append("path").attr("d", path(line.points)).style("fill", "none").style("stroke", colourOf(line.label)).style("stroke-width", 2.5);
    const dots = svg.selectAll(null).data(line.points.filter((p) => p.y !== null)).enter().append("circle").attr("r", 4.5)
      .attr("cx", (p) => x(p.value)).attr("cy", (p) => y(p.y)).style("fill", colourOf(line.label));
    tooltips(dots, (p) => [`${p.label}, ${state.x} ${p.value}`,
      isNumber(p.row.tokens_per_second_per_gpu) ? `${whole(p.row.tokens_per_second_per_gpu)} tokens/s/GPU` : p.row.status, speedupText(p.row),
      isNumber(p.row.step_seconds) ? seconds(p.row.step_seconds) + " a step" : "", isNumber(p.row.peak_memory_bytes) ? gib(p.row.peak_memory_bytes) + " GiB" : ""]);
  }
}
