// A sweep: one key as lines, two as a map, more as parallel coordinates, and all cases in a table.

function assignmentsOf(one) {
  return Object.fromEntries(one.assignments.map((text) => [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)]));
}

function sizeOf(text) {
  const found = /^(-?[0-9.]+)([KM]?)$/.exec(text);
  return found ? Number(found[1]) * { "": 1, K: 1024, M: 2 ** 20 }[found[2]] : NaN;
}

const shortKey = (key) => key.slice(key.lastIndexOf(".") + 1).replaceAll("_", " ");

const kSweepMetrics = [["tokens_per_second_per_gpu", "Tokens per second and GPU"], ["speedup", "Speed-up over the baseline"],
  ["step_seconds", "Seconds a step"], ["peak_memory_bytes", "Most memory of a GPU, GiB"]];

function metricText(metric, value) {
  if (!isNumber(value)) return "–";
  return metric === "tokens_per_second_per_gpu" ? whole(value) : metric === "peak_memory_bytes" ? gib(value) : value.toFixed(metric === "speedup" ? 2 : 3);
}

function rowLines(row, where) {
  return [`${row.label}, ${where}`, isNumber(row.tokens_per_second_per_gpu) ? `${whole(row.tokens_per_second_per_gpu)} tokens/s/GPU` : row.status, speedupText(row),
    isNumber(row.step_seconds) ? seconds(row.step_seconds) + " a step" : "", isNumber(row.peak_memory_bytes) ? gib(row.peak_memory_bytes) + " GiB" : "", row.reason];
}

// A win counts if the interval of the fastest overlaps with no other's.
const standing = (one, row) => (row.label !== one.winner ? "" : one.significant ? "fastest" : "not significant");

function sweepPage() {
  const cases = data.cases.map((one) => ({ ...one, values: assignmentsOf(one) }));
  const labels = [...new Set(cases.flatMap((one) => one.rows.map((row) => row.label)))];
  colourOf = colourer(labels, cases[0].baseline);
  const keys = [...new Set(cases.flatMap((one) => Object.keys(one.values)))]
    .filter((key) => new Set(cases.map((one) => one.values[key])).size > 1);
  const most = (label) => largest(cases.flatMap((one) => one.rows.filter((row) => row.label === label && isNumber(row.tokens_per_second_per_gpu)).map((row) => row.beyond_samples || 0)));
  const sweep = { cases, labels, keys, valuesOf: (key) => orderedValues(cases.map((one) => one.values[key])) };
  if (keys.length && cases.some((one) => one.winner)) sweepFigure(sweep);
  casesTable(sweep);
  notesSection(labels.map((label) => [`${label} up to`, most(label)]).filter(([, share]) => share >= 0), notesOf(cases.map((one) => [one.assignments.join(" "), noteTexts(one.notes)])));
  contents();
}

// In order of size if all are numbers, else as they were given.
function orderedValues(values) {
  const once = [...new Set(values)];
  return once.every((value) => !Number.isNaN(sizeOf(value))) ? once.sort((a, b) => sizeOf(a) - sizeOf(b)) : once;
}

// Said of a sweep whose keys move nothing: its map has colours all the same.
function flatness({ cases }) {
  const rates = cases.flatMap((one) => one.rows.filter((row) => row.label === one.winner).map((row) => row.tokens_per_second_per_gpu));
  const spread = largest(rates) / rates.reduce((a, b) => Math.min(a, b)) - 1;
  return rates.length > 1 && spread < 0.01 ? `The result is flat: the fastest rows of all cases are within ${percent(spread, 2)} of each other.` : "";
}

function sweepFigure(sweep) {
  const { labels, keys, valuesOf } = sweep;
  const views = [["lines", "Lines, one per policy"], ["map", "Map over two keys"], ["parallel", "Parallel coordinates"]].slice(0, Math.min(3, keys.length));
  const parent = section("sweep", "Over the swept keys",
    "Where lines of tokens/s/GPU cross, another policy wins.",
    keys.length > 1 ? "A cell of the map has the fastest policy that the framework runs, and its tokens/s/GPU, simulated. It is pale, with a question mark, where that policy is tied with another." : "",
    keys.length > 1 && sweep.cases.some((one) => one.winner && !one.runs) ? "A star marks a policy that the framework does not run: it runs none of that case." : "",
    flatness(sweep),
    sweep.cases.some((one) => one.rows.some((row) => !isNumber(row.tokens_per_second_per_gpu))) ? "Where a line has a gap, a × on the axis says why, as the table does." : "");
  const longest = keys.slice().sort((a, b) => valuesOf(b).length - valuesOf(a).length);
  const state = { view: views[views.length - 1][0], x: longest[0], y: longest[1], metric: kSweepMetrics[0][0], policy: "", held: {} };
  for (const key of keys) state.held[key] = valuesOf(key)[0];
  const controls = el("div", { class: "controls" }), colours = el("div");
  parent.append(controls, colours);
  const draw = { lines: sweepLines, map: sweepMap, parallel: sweepParallel };
  const redraw = chart(parent, "Figures over the swept keys; the table below has all of them", (host, width) => draw[state.view](host, width, sweep, state));
  const show = () => {
    const act = (key) => (value) => {
      if (key === "x" && value === state.y) state.y = state.x;
      state[key] = value;
      show();
    };
    const axes = { lines: ["x"], map: ["x", "y"], parallel: keys }[state.view].map((axis) => state[axis] || axis);
    const policies = [["", state.view === "map" ? "the fastest" : "all"], ...labels.map((label) => [label, label])];
    renew(controls, ...(views.length > 1 ? [select("View", views, state.view, act("view"))] : []),
      ...(state.view === "lines" || (state.view === "map" && !state.policy) ? [] : [select("Figure", kSweepMetrics, state.metric, act("metric"))]),
      ...(state.view === "lines" ? [] : [select("Policy", policies, state.policy, act("policy"))]),
      ...(state.view !== "parallel" && keys.length > 1 ? [select("Over", keys.map((key) => [key, key]), state.x, act("x"))] : []),
      ...(state.view === "map" && keys.length > 2 ? [select("And over", keys.filter((key) => key !== state.x).map((key) => [key, key]), state.y, act("y"))] : []),
      ...keys.filter((key) => !axes.includes(key)).map((key) => select(key, valuesOf(key).map((v) => [v, v]), state.held[key], (value) => { state.held[key] = value; show(); })));
    const shown = state.policy ? (state.view === "map" ? [] : [state.policy]) : labels;
    colours.replaceChildren(legend(shown.map((label) => [label, colourOf(label)])));
    if (redraw) redraw();
  };
  show();
}

const casesWith = (sweep, state, axes) => sweep.cases.filter((one) => sweep.keys.every((key) => axes.includes(key) || one.values[key] === state.held[key]));
const metricScale = (metric) => (metric === "peak_memory_bytes" ? 2 ** -30 : 1);

// All figures over one key, as small multiples.
function sweepLines(host, width, sweep, state) {
  const columns = width < 640 ? 1 : 2, gap = 32, tall = 260, wide = (width - gap * (columns - 1)) / columns;
  const svg = svgIn(host, width, tall * Math.ceil(kSweepMetrics.length / columns));
  kSweepMetrics.forEach(([metric, title], i) => {
    const panel = svg.append("g").attr("transform", `translate(${(i % columns) * (wide + gap)},${Math.floor(i / columns) * tall})`);
    panel.append("text").attr("class", "soft name").attr("y", 14).text(`${title}, simulated`).call(fitText, wide);
    linesOf(panel, wide, tall, sweep, state, metric);
  });
}

// Draws one figure, with a line for each policy.
function linesOf(panel, width, height, sweep, state, metric) {
  const held = casesWith(sweep, state, [state.x]);
  const values = sweep.valuesOf(state.x), scale = metricScale(metric);
  const left = 52, bottom = 50, top = 28;
  const every = Math.ceil(values.length * (12 + 7 * Math.max(...values.map((value) => String(value).length))) / (width - left));
  const lines = sweep.labels.map((label) => ({ label, points: values.map((value) => {
    const one = held.find((c) => c.values[state.x] === value);
    const row = one && one.rows.find((r) => r.label === label);
    return { value, row, one, label, y: row && isNumber(row[metric]) ? row[metric] * scale : null };
  }) }));
  const all = lines.flatMap((line) => line.points.filter((p) => p.y !== null).map((p) => p.y));
  const x = d3.scalePoint().domain(values).range([left, width - 12]).padding(0.3);
  const y = d3.scaleLinear().domain([0, Math.max(0, ...all)]).nice(5).range([height - bottom, top]);
  if (all.length) panel.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(5, "~r").tickSize(-(width - left - 12)));
  panel.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`)
    .call(d3.axisBottom(x).tickFormat((value, i) => (i % every === 0 ? value : "")).tickSize(0).tickPadding(8));
  axisTitle(panel, width, height - 14, state.x);
  const path = d3.line().defined((p) => p.y !== null).x((p) => x(p.value)).y((p) => y(p.y));
  for (const line of lines) {
    panel.append("path").attr("d", path(line.points)).style("fill", "none").style("stroke", colourOf(line.label)).style("stroke-width", 2.5);
    const dots = panel.selectAll(null).data(line.points.filter((p) => p.y !== null)).enter().append("circle").attr("r", 4.5)
      .attr("cx", (p) => x(p.value)).attr("cy", (p) => y(p.y)).style("fill", colourOf(line.label));
    tooltips(dots, (p) => [...rowLines(p.row, `${state.x} ${p.value}`), standing(p.one, p.row)]);
  }
  const gaps = lines.flatMap((line) => line.points.filter((p) => p.y === null));
  const marks = panel.selectAll("text.gap").data(gaps).join("text").attr("class", "gap").attr("text-anchor", "middle").style("font-size", "18px").style("fill", (p) => colourOf(p.label)).text("×")
    .attr("x", (p) => x(p.value)).attr("y", (p) => height - bottom - 2 - 14 * gaps.filter((other) => other.value === p.value).indexOf(p));
  tooltips(marks, (p) => gapLines(p, `${state.x} ${p.value}`, metric));
}

// Says why a line has a gap.
function gapLines(p, where, metric) {
  if (!p.row) return [`${p.label}, ${where}`, "this case is not on this page"];
  const without = p.row.status === "ok" ? `no figure here: ${kSweepMetrics.find((m) => m[0] === metric)[1].toLowerCase()}` : "";
  return [...rowLines(p.row, where), without];
}

// The colour for a share from 0 to 1, and for text on it.
function heat(share) {
  const colours = [0, 1, 2, 3, 4].map((i) => cssColour("--s" + i));
  const at = Math.max(0, Math.min(3.999, share * 4)), i = Math.floor(at);
  return d3.interpolateLab(colours[i], colours[i + 1])(at - i);
}
const textOn = (colour) => (d3.lab(colour).l > 58 ? "#111" : "#fff");

// Draws a map from cells [{x, y, text: [line, line], end, fill, pale, lines}]. A cell without a fill is
// empty; `end` is kept when a first line is cut.
function heatMap(host, width, xs, ys, cells, xTitle, yTitle) {
  const left = Math.min(width * 0.3, 14 + 8 * largest([...ys.map((v) => String(v).length), yTitle.length / 1.2]));
  const wide = (width - left) / xs.length, tall = 44;
  const svg = svgIn(host, width, ys.length * tall + 44);
  svg.append("text").attr("class", "soft").attr("x", 0).attr("y", 12).text(yTitle).call(fitText, left - 6);
  svg.append("text").attr("class", "soft").attr("x", width - 2).attr("y", ys.length * tall + 40).attr("text-anchor", "end").text(xTitle);
  svg.selectAll("text.y").data(ys).join("text").attr("class", "y soft").attr("x", 0).attr("y", (_, i) => i * tall + 29).text(String).call(fitText, left - 6);
  svg.selectAll("text.x").data(xs).join("text").attr("class", "x soft").attr("text-anchor", "middle").attr("x", (_, i) => left + (i + 0.5) * wide).attr("y", ys.length * tall + 20).text(String).call(fitText, wide - 4);
  const cell = svg.selectAll("g.cell").data(cells).join("g").attr("class", "cell")
    .attr("transform", (c) => `translate(${left + xs.indexOf(c.x) * wide},${ys.indexOf(c.y) * tall})`);
  const boxes = cell.append("rect").attr("x", 1).attr("y", 1).attr("width", Math.max(1, wide - 2)).attr("height", tall - 2).attr("rx", 2)
    .style("fill", (c) => c.fill || "var(--faint)").style("fill-opacity", (c) => (c.pale ? 0.35 : 1));
  tooltips(boxes, (c) => c.lines);
  for (const line of [0, 1])
    cell.append("text").attr("x", wide / 2).attr("y", (c) => (c.text.length > 1 ? 18 + 16 * line : 26)).attr("text-anchor", "middle").style("pointer-events", "none").style("font-size", "12px")
      .style("fill", (c) => (c.fill && !c.pale ? textOn(c.fill) : "var(--ink)")).text((c) => c.text[line] || "").call(fitText, wide - 6, (c) => (line === 0 && c.end) || "");
}

function sweepMap(host, width, sweep, state) {
  const held = casesWith(sweep, state, [state.x, state.y]);
  const values = held.map((one) => one.rows.find((row) => row.label === state.policy)).filter((row) => row && isNumber(row[state.metric])).map((row) => row[state.metric]);
  const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = largest(values);
  const cells = held.map((one) => {
    const place = { x: one.values[state.x], y: one.values[state.y] }, where = one.assignments.join(" ");
    const row = one.rows.find((r) => r.label === (state.policy || one.winner));
    if (!row) return { ...place, text: ["none", "runs"], lines: [where, ...one.rows.map((r) => `${r.label}: ${r.status}${r.reason ? `: ${r.reason}` : ""}`)] };
    if (!state.policy) {
      const own = cssColour(colourOf(one.winner).slice(4, -1));
      const end = (one.runs ? "" : "*") + (one.significant ? "" : "?");
      return { ...place, fill: own, pale: !one.significant, end, text: [row.label + end, whole(row.tokens_per_second_per_gpu)],
        lines: [...rowLines(row, where), one.significant ? "fastest" : "tied with another, or too few batches ran", one.runs ? "" : "the framework does not run it"] };
    }
    const value = row[state.metric];
    return { ...place, fill: isNumber(value) ? heat(high > low ? (value - low) / (high - low) : 1) : null, text: [isNumber(value) ? metricText(state.metric, value) : row.status], lines: rowLines(row, where) };
  });
  heatMap(host, width, sweep.valuesOf(state.x), sweep.valuesOf(state.y), cells, state.x, shortKey(state.y));
}

function sweepParallel(host, width, sweep, state) {
  const axes = [...sweep.keys, state.metric], height = 380, scale = metricScale(state.metric);
  const rows = sweep.cases.flatMap((one) => one.rows.filter((row) => isNumber(row[state.metric]) && (!state.policy || row.label === state.policy)).map((row) => ({ one, row })));
  if (!rows.length) return;
  const svg = svgIn(host, width, height);
  const x = d3.scalePoint().domain(axes).range([20, width - 56]).padding(0.15);
  const top = 12 + 16 * axisTitles(svg, axes, x, width, (axis) => (axis === state.metric ? kSweepMetrics.find((m) => m[0] === axis)[1] : shortKey(axis)));
  const y = Object.fromEntries(sweep.keys.map((key) => [key, d3.scalePoint().domain(sweep.valuesOf(key)).range([height - 16, top]).padding(0.3)]));
  y[state.metric] = d3.scaleLinear().domain(d3.extent(rows, (r) => r.row[state.metric] * scale)).nice(5).range([height - 16, top]);
  // so that policies do not cover each other
  const shift = (label) => 3.5 * (sweep.labels.indexOf(label) - (sweep.labels.length - 1) / 2);
  const at = (r, axis) => [x(axis), axis === state.metric ? y[axis](r.row[axis] * scale) : y[axis](r.one.values[axis]) + shift(r.row.label)];
  const lines = svg.selectAll("path.case").data(rows).join("path").attr("class", "case").attr("d", (r) => d3.line()(axes.map((axis) => at(r, axis))))
    .style("fill", "none").style("stroke", (r) => colourOf(r.row.label)).style("stroke-width", 1.8).style("stroke-opacity", (r) => (standing(r.one, r.row) === "fastest" ? 1 : 0.4));
  tooltips(lines, (r) => [...rowLines(r.row, r.one.assignments.join(" ")), standing(r.one, r.row)]);
  axes.forEach((axis, i) => {
    const g = svg.append("g").attr("class", "axis halo").attr("transform", `translate(${x(axis)},0)`);
    g.call((axis === state.metric ? d3.axisRight(y[axis]).ticks(5, "~r") : d3.axisRight(y[axis])).tickSize(4));
    g.selectAll("text").call(fitText, i + 1 < axes.length ? x.step() - 10 : 50);
    g.append("line").attr("y1", top).attr("y2", height - 16);
  });
}

// Draws the titles of upright axes, in as many rows as none covers another, and returns that number.
function axisTitles(svg, axes, x, width, titleOf) {
  const ends = [];  // by row
  svg.selectAll("text.title").data(axes).join("text").attr("class", "title soft").attr("x", x)
    .attr("text-anchor", (_, i) => (i === 0 ? "start" : i + 1 === axes.length ? "end" : "middle")).text(titleOf).call(fitText, width / 2)
    .each(function () {
      const box = this.getBBox(), free = ends.findIndex((end) => end + 8 < box.x), row = free < 0 ? ends.length : free;
      ends[row] = box.x + box.width;
      d3.select(this).attr("y", 14 + 16 * row);
    });
  return ends.length;
}

// Every row of every case. Titles sort, and the controls above filter.
function casesTable(sweep) {
  const { cases, keys, labels, valuesOf } = sweep;
  const parent = section("cases", "All cases", "All figures are simulated; the page of a case says from what.");
  const shown = keys.length ? keys : Object.keys(cases[0].values);
  const flat = cases.flatMap((one) => one.rows.map((row) => ({ one, row })));
  const reasons = flat.filter(({ row }) => row.reason);
  const gpus = new Set(cases.map((one) => one.gpus)).size > 1;
  const made = table([...shown.map((key) => [shortKey(key), true]), ...(gpus ? [["GPUs", false]] : []), ["policy", "text name"], ["status", "text word"], ["tokens/s/GPU", false], ["speed-up", false], ["step s", false], ["memory GiB", false], ["beyond samples %", false], ["significant", "text word"], ...(reasons.length ? [["why not", true]] : [])],
    flat.map(({ one, row }) => [
      ...shown.map((key, i) => (i || !one.folder ? one.values[key] : el("a", { href: encodeURIComponent(one.folder) + "/report.html" }, one.values[key]))), ...(gpus ? [grouped(one.gpus)] : []), row.label, row.status,
      metricText("tokens_per_second_per_gpu", row.tokens_per_second_per_gpu), speedupText(row) || "–", fixedOr(row.step_seconds, 3), metricText("peak_memory_bytes", row.peak_memory_bytes),
      isNumber(row.tokens_per_second_per_gpu) ? (100 * row.beyond_samples).toFixed(1) : "–", standing(one, row), ...(reasons.length ? [row.reason || "–"] : [])]));
  const body = made.querySelector("table"), own = [...body.tBodies[0].rows];
  const state = { text: "", held: {} };
  const count = el("p", { class: "note", role: "status" });
  const apply = () => {
    own.forEach((node, i) => {
      const { one, row } = flat[i];
      const values = { ...one.values, policy: row.label, status: row.status };
      node.hidden = !node.textContent.toLowerCase().includes(state.text) || Object.entries(state.held).some(([key, value]) => value !== "" && values[key] !== value);
    });
    const left = own.filter((node) => !node.hidden).length;
    count.textContent = left === own.length ? `${grouped(own.length)} rows` : `${grouped(left)} of ${grouped(own.length)} rows`;
  };
  const choice = (key, values) => select(shortKey(key), [["", "all"], ...values.map((v) => [v, v])], "", (value) => { state.held[key] = value; apply(); });
  const words = el("input", { type: "search", oninput: () => { state.text = words.value.toLowerCase(); apply(); } });
  const statuses = [...new Set(flat.map(({ row }) => row.status))];
  parent.append(el("div", { class: "controls" }, el("label", {}, "Holds the text", words), ...keys.map((key) => choice(key, valuesOf(key))),
    ...(labels.length > 1 ? [choice("policy", labels)] : []), ...(statuses.length > 1 ? [choice("status", statuses)] : [])), count, made);
  makeSortable(body);
  apply();
  if (!reasons.length) return;
  body.classList.add("reasons");
  const list = reasons.map(({ one, row }) => el("p", { class: "reason" }, `${one.assignments.join(" ")}: ${row.label}: ${row.reason}`));
  parent.append(el("details", { open: list.length < 6 }, el("summary", {}, `${grouped(list.length)} rows that did not run, or do not fit`), ...list));
}
