// Imbalance over the micro-batches of a step and over the ranks of a CP group, with one dot per step.

function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
}

function quantile(values, share) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

// Draws all steps of a policy as dots on one line, with a tick at their median.
function dotRows(parent, title, rows, name) {
  const most = Math.max(1.05, ...rows.flatMap((row) => row.dots.map((dot) => dot.value)));
  chart(parent, `${title}: ` + rows.map((row) => `${row.label} median ${median(row.dots.map((d) => d.value)).toFixed(2)}`).join(", "),
    (host, width) => {
      const tall = 50;
      const svg = svgIn(host, width, rows.length * tall + 24);
      const x = d3.scaleLinear().domain([1, most]).nice().range([12, width - 14]);
      svg.append("g").attr("class", "axis").attr("transform", `translate(0,${rows.length * tall})`)
        .call(d3.axisBottom(x).ticks(width < 420 ? 4 : 6).tickSize(-rows.length * tall));
      const row = svg.selectAll("g.row").data(rows).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
      row.append("text").attr("y", 15).text((r) => r.label).call(fitText, width * 0.72);
      row.append("text").attr("class", "soft").attr("x", width).attr("y", 15).attr("text-anchor", "end")
        .text((r) => "median " + median(r.dots.map((d) => d.value)).toFixed(2));
      const dots = row.selectAll("circle").data((r) => r.dots.map((d, i) => ({ ...d, row: r.label, i }))).join("circle")
        .attr("cx", (d) => x(d.value)).attr("cy", (d) => 32 + 9 * (((d.i * 0.618) % 1) - 0.5)).attr("r", 3)
        .style("fill", (d) => colourOf(d.row)).style("fill-opacity", 0.45);
      tooltips(dots, (d) => [`${d.row}, step ${d.step}`, `${name} ${d.value.toFixed(3)}`, `step time ${seconds(d.seconds)}`]);
      row.append("line").attr("class", "chosen").attr("y1", 23).attr("y2", 41)
        .attr("x1", (r) => x(median(r.dots.map((d) => d.value)))).attr("x2", (r) => x(median(r.dots.map((d) => d.value))));
    });
}

function stepsOf(row) {
  if (!row.steps) return [];
  const { columns, rows } = row.steps;
  return rows.map((values) => Object.fromEntries(columns.map((column, i) => [column, values[i]])));
}

function imbalanceSection() {
  const rows = data.rows.map((row) => ({ label: row.label, steps: stepsOf(row).filter((step) => !step.tail) }))
    .filter((row) => row.steps.length);
  if (!rows.length) return;
  const thinned = data.rows.filter((row) => row.steps && row.steps.every > 1);
  const parent = section("imbalance", "How even the work is, step by step",
    "Slowest over mean; 1 is perfect. A step waits for its heaviest micro-batch, a micro-batch for its heaviest context-parallel rank.",
    thinned.length ? `One step in ${thinned[0].steps.every} is drawn; steps.csv has all.` : "");
  const panels = el("div", { class: "panels" });
  parent.append(panels);
  const kinds = [["imbalance", "Micro-batches of a step (forward time)"], ["cp_imbalance", "Ranks of a CP group (attention time)"]];
  const dotsOf = (row, key) => row.steps.filter((s) => isNumber(s[key])).map((s) => ({ value: s[key], step: s.step, seconds: s.seconds }));
  for (const [key, title] of kinds) {
    const own = rows.map((row) => ({ label: row.label, dots: dotsOf(row, key) })).filter((row) => row.dots.length);
    // with one of each there is nothing to balance
    if (!own.some((row) => row.dots.some((dot) => dot.value > 1.0005))) continue;
    const panel = el("div", {}, el("h3", {}, title));
    panels.append(panel);
    dotRows(panel, title, own, "slowest / mean");
  }
  const figures = (row, key) => {
    const values = dotsOf(row, key).map((dot) => dot.value);
    return values.length ? [median(values).toFixed(3), quantile(values, 0.9).toFixed(3), Math.max(...values).toFixed(3)] : ["–", "–", "–"];
  };
  behind(parent, [["policy", true], ["micro-batches: median", false], ["p90", false], ["largest", false],
    ["CP ranks: median", false], ["p90", false], ["largest", false]],
  rows.map((row) => [row.label, ...figures(row, "imbalance"), ...figures(row, "cp_imbalance")]));
}
