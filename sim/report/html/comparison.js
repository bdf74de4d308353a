// Compares two saved results: each row's speed in the second over the first, with its interval.

function comparisonPage() {
  const rows = data.comparison.rows.filter((row) => isNumber(row.ratio));
  const parent = document.getElementById("changes");
  for (const body of report.querySelectorAll("table"))
    body.closest(".scroll").after(el("div", { class: "tools" }, csvButton(body, body.id.replace("-table", ""))));
  makeCards(document.getElementById("changes-table"));
  const below = [...parent.children].slice(1);
  if (rows.length) ratios(parent, rows);
  parent.append(...below);
  const all = data.comparison.rows, sides = ["first", "second"];
  const shares = all.flatMap((row) => {
    const own = sides.filter((side) => row[side] && isNumber(row[side].beyond_samples_share)).map((side) => [`${row.label} in the ${side}`, row[side].beyond_samples_share]);
    return own.length === 2 && shareText(own[0][1]) === shareText(own[1][1]) ? [[row.label, own[0][1]]] : own;
  });
  notesSection(shares, notesOf(sides.map((side) =>
    [`only the ${side}`, notesIn(data.comparison[side + "_notes"], all.map((row) => row[side] && { label: row.label, notes: row[side].notes }))])));
  contents();
}

function ratios(parent, rows) {
  const ends = rows.flatMap((row) => [row.ratio, row.low, row.high]).filter(isNumber).concat(1);
  const low = ends.reduce((a, b) => Math.min(a, b)), high = largest(ends);
  const room = Math.max(0.01, (high - low) * 0.1), digits = high - low + 2 * room < 0.1 ? 3 : 2;
  chart(parent, "Speed of the second over the first: " + rows.map((row) => `${row.label} ${row.ratio.toFixed(3)}x, ${row.verdict}`).join("; "), (host, width) => {
    const tall = 46;
    const svg = svgIn(host, width, rows.length * tall + 44);
    const x = d3.scaleLinear().domain([low - room, high + room]).range([12, width - 18]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${rows.length * tall})`)
      .call(d3.axisBottom(x).ticks(width < 500 ? 3 : 7).tickFormat((t) => t.toFixed(digits) + "x").tickSize(0).tickPadding(6))
      .selectAll("text").attr("text-anchor", (t) => (x(t) < 24 ? "start" : x(t) > width - 24 ? "end" : "middle"));
    axisTitle(svg, width, rows.length * tall + 38, rows.some((r) => isNumber(r.low)) ? "second over first, tokens/s/GPU; lines are 95 % intervals" : "second over first, tokens/s/GPU");
    svg.append("line").attr("class", "reference").attr("x1", x(1)).attr("x2", x(1)).attr("y1", 0).attr("y2", rows.length * tall);
    const row = svg.selectAll("g.row").data(rows).join("g").attr("class", "row").attr("transform", (_, i) => `translate(0,${i * tall})`);
    row.append("text").attr("y", 15).text((r) => r.label).call(fitText, width * 0.55);
    row.append("text").attr("class", "value").attr("x", width - 8).attr("y", 15).attr("text-anchor", "end").text((r) => `${r.ratio.toFixed(3)}x ${r.verdict}`);
    row.filter((r) => isNumber(r.low)).append("line").attr("class", "whisker").attr("x1", (r) => x(r.low)).attr("x2", (r) => x(r.high)).attr("y1", 30).attr("y2", 30);
    const dots = row.append("circle").attr("cx", (r) => x(r.ratio)).attr("cy", 30).attr("r", 5)
      .style("fill", (r) => (r.verdict.startsWith("slower") ? "var(--bad)" : r.verdict.startsWith("faster") ? "var(--p0)" : "var(--base)"));
    tooltips(dots, (r) => [r.label, `${r.ratio.toFixed(3)}x: ${r.verdict}`]);
  });
}
