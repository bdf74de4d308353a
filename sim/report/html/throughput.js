// Tokens per second and GPU of every policy, with the interval of its speed-up, and where a step's time goes.

function speedupText(metrics) {
  if (!isNumber(metrics.speedup)) return "";
  const range = isNumber(metrics.speedup_low)
    ? ` (${metrics.speedup_low.toFixed(2)}–${metrics.speedup_high.toFixed(2)})` : "";
  return `${metrics.speedup.toFixed(2)}x${range}`;
}

// The interval of a speed-up in tokens per second.
function rateInterval(metrics) {
  if (!isNumber(metrics.speedup_low) || !isNumber(metrics.speedup_high)) return null;
  const one = metrics.tokens_per_second_per_gpu / metrics.speedup;
  return [one * metrics.speedup_low, one * metrics.speedup_high];
}

const kNotRun = { oom: "out of memory", unplaceable: "cannot place a document", refused: "refused" };

function throughputSection(study) {
  const parent = document.querySelector("#throughput .chart");
  const rate = (policy) => policy.metrics && policy.metrics.tokens_per_second_per_gpu;
  const rows = study.policies.slice().sort((a, b) => (rate(b) || 0) - (rate(a) || 0));
  const ran = rows.filter((policy) => isNumber(rate(policy)));
  const baseline = ran.find((policy) => policy.label === study.baseline);
  const figures = document.getElementById("comparison");
  makeCards(figures);
  figures.closest(".scroll").after(el("div", { class: "tools" }, csvButton(figures, "All figures by policy")));
  for (const row of document.querySelectorAll("#comparison tbody tr"))
    if (row.cells[0].textContent === data.winner) row.classList.add("best");
  if (!ran.length) return;
  const most = Math.max(...ran.map((p) => Math.max(rate(p), (rateInterval(p.metrics) || [0, 0])[1])));
  parent.before(el("p", { class: "unit" }, "Tokens per second and GPU" + (baseline ? `, speed-up over ${study.baseline}` : "") +
    (ran.some((p) => rateInterval(p.metrics) && p !== baseline) ? " with its 95 % interval" : "") + ". Simulated."));
  chart(parent, "Throughput by policy: " + ran.map((p) => `${p.label} ${whole(rate(p))}`).join(", "), (host, width) => {
    const tall = width < 560 ? 66 : 50;
    const svg = svgIn(host, width, rows.length * tall + 4);
    const x = d3.scaleLinear().domain([0, most]).range([0, width - 8]);
    const row = svg.selectAll("g").data(rows).join("g").attr("transform", (_, i) => `translate(0,${i * tall})`);
    const barTop = tall - 26;
    row.append("text").attr("class", (p) => (p.label === data.winner ? "strong" : null)).attr("y", 16)
      .text((p) => p.label + (p.memory_ignored ? " (does not fit)" : "")).call(fitText, width < 560 ? width - 10 : width * 0.5);
    row.append("text").attr("class", (p) => "value" + (p.label === data.winner ? " strong" : ""))
      .attr("x", width < 560 ? 0 : width - 8).attr("text-anchor", width < 560 ? "start" : "end").attr("y", width < 560 ? 34 : 16)
      .text((p) => (isNumber(rate(p)) ? [whole(rate(p)), speedupText(p.metrics)].filter(Boolean).join("  ·  ") : kNotRun[p.status]));
    row.filter((p) => isNumber(rate(p))).append("rect").attr("y", barTop).attr("height", 16).attr("rx", 2)
      .attr("width", (p) => x(rate(p))).style("fill", (p) => colourOf(p.label));
    row.filter((p) => !isNumber(rate(p))).append("rect").attr("y", barTop + 7).attr("height", 2).attr("width", width - 8)
      .style("fill", "var(--line)");
    const intervals = row.filter((p) => rateInterval(p.metrics) && p !== baseline);
    const line = (x1, x2, y1, y2) => intervals.append("line").attr("class", "whisker")
      .attr("x1", (p) => x(rateInterval(p.metrics)[x1])).attr("x2", (p) => x(rateInterval(p.metrics)[x2]))
      .attr("y1", barTop + y1).attr("y2", barTop + y2);
    line(0, 1, 8, 8);
    line(0, 0, 4, 12);
    line(1, 1, 4, 12);
    if (baseline)
      row.filter((p) => p !== baseline).append("line").attr("class", "reference").attr("x1", x(rate(baseline)))
        .attr("x2", x(rate(baseline))).attr("y1", barTop - 4).attr("y2", barTop + 20);
  });
}

const kLossColours = {
  "computation": "var(--c0)", "waiting for other stages": "var(--c1)", "waiting for others": "var(--c1)",
  "waiting for the slowest replica": "var(--c2)", "TP communication": "var(--c3)", "CP communication": "var(--c4)",
  "EP communication": "var(--c5)", "transfers between stages": "var(--c6)", "gradient and parameter exchange": "var(--c7)",
  "recompute": "var(--c8)",
};

// Draws rows of parts that add up to the row's total, [{label, parts: [{name, share, text}]}]; `mark` is a
// line.
function stackedRows(parent, title, rows, colours, scaleEnd = 1, axisText = (share) => percent(share, 0), mark = null) {
  chart(parent, title, (host, width) => {
    const tall = 46;
    const svg = svgIn(host, width, rows.length * tall + 24);
    const x = d3.scaleLinear().domain([0, scaleEnd]).range([0, width - 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${rows.length * tall})`)
      .call(d3.axisBottom(x).ticks(width < 500 ? 4 : 8).tickFormat(axisText).tickSize(-rows.length * tall))
      .selectAll("text").attr("text-anchor", (share) => (x(share) < 20 ? "start" : x(share) > width - 40 ? "end" : "middle"));
    const row = svg.selectAll("g.row").data(rows).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("y", 16).text((r) => r.label).call(fitText, width * (rows.some((r) => r.right) ? 0.6 : 0.95));
    row.append("text").attr("class", "soft").attr("y", 16).attr("x", width - 8).attr("text-anchor", "end").text((r) => r.right || "");
    const part = row.selectAll("rect").data((r) => {
      let from = 0;
      return r.parts.map((p) => ({ ...p, row: r.label, from, to: (from += p.share) }));
    }).join("rect").attr("x", (p) => x(p.from)).attr("width", (p) => Math.max(0, x(p.to) - x(p.from) - 0.5))
      .attr("y", 22).attr("height", 16).style("fill", (p) => colours(p.name));
    if (mark !== null) row.append("line").attr("class", "reference").attr("x1", x(mark)).attr("x2", x(mark)).attr("y1", 19).attr("y2", 41);
    tooltips(part, (p) => [p.name, `${p.row}: ${p.text}`]);
  });
}

function lossesSection(study) {
  const ran = study.policies.filter((p) => p.metrics && isNumber(p.metrics.tokens_per_second_per_gpu));
  if (!ran.length) return;
  const rows = ran.map((policy) => {
    const losses = rowOf(policy.label).losses;
    const lost = losses.reduce((sum, loss) => sum + loss.share, 0);
    const parts = [{ name: "computation", share: Math.max(0, 1 - lost) }, ...losses];
    return { label: policy.label, parts: parts.map((p) => ({ ...p, text: percent(p.share) + " of a step" })) };
  });
  const names = [...new Set(rows.flatMap((row) => row.parts.map((part) => part.name)))];
  const order = Object.keys(kLossColours).filter((name) => names.includes(name));
  for (const row of rows) row.parts.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
  const parent = section("losses", "Where a step’s time goes",
    "Each second of a GPU counts once, as a mean over all GPUs and full steps: what is not computation is what a better plan can win back.");
  parent.append(legend(order.map((name) => [name, kLossColours[name]])));
  stackedRows(parent, "Shares of a step by policy", rows, (name) => kLossColours[name]);
  behind(parent, [["policy", true], ...order.map((name) => [name + " %", false])],
    rows.map((row) => [row.label, ...order.map((name) =>
      fixedOr(100 * (row.parts.find((part) => part.name === name) || { share: 0 }).share, 1))]));
  if (!data.rows.some((row) => row.critical_path))
    parent.append(el("p", { class: "note" }, "Which chain of ops sets a step’s time is known where every kernel and collective is simulated: run the study with --fidelity op and --out to see its critical path here."));
  if (data.gpu_spread) parent.append(el("p", { class: "note" }, `${data.winner}: ${data.gpu_spread}`));
}
