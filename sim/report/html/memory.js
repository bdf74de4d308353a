// Memory of every pipeline stage against what a GPU has: one small chart per policy, or with a single stage
// one bar per policy.

const kParts = ["parameters", "gradients", "optimizer", "reserve", "activations", "kv_state", "kv_gradients", "gathered_kv", "logits", "buffers"];
const kPartColours = Object.fromEntries(kParts.map((part, i) =>
  [part, ["var(--s4)", "var(--s3)", "var(--s2)", "var(--c0)", "var(--c1)", "var(--c2)", "var(--c8)", "var(--c3)", "var(--c5)", "var(--c7)"][i]]));
const partName = (part) => part.replace("_", " ").replace("kv", "KV");

function memorySection(study) {
  const rows = data.rows.map((row, i) => ({ ...row.memory, label: row.label, policy: study.policies[i] }))
    .filter((row) => row.stages.length && row.policy.memory);
  if (!rows.length) return;
  const other = rows.filter((row) => isNumber(row.policy.memory.step) && row.policy.memory.step !== row.step);
  const total = (stage) => Object.values(stage.parts).reduce((sum, bytes) => sum + bytes, 0);
  const capacity = Math.max(...rows.map((row) => row.policy.memory.capacity_bytes));
  const most = Math.max(capacity, ...rows.flatMap((row) => row.stages.map(total)));
  const used = kParts.filter((part) => rows.some((row) => row.stages.some((stage) => stage.parts[part])));
  const parent = section("memory", "Memory of a GPU, stage by stage",
    data.fullest, `The fullest lane of each stage in the step that holds the most; the dashed line is what a GPU has, ${gib(capacity)} GiB. GiB by stage, modelled.`,
    other.length ? `Not the fullest step but the one that was recorded: ${other.map((row) => `${row.label}, step ${row.step}`).join("; ")}.` : "");
  parent.append(legend(used.map((part) => [partName(part), kPartColours[part]])));
  const titleOf = (row) => row.label + (row.policy.status === "oom" ? " (out of memory)" : "");
  if (rows.every((row) => row.stages.length === 1)) return memoryBars(parent, rows, titleOf, used, total, capacity, most);
  const panels = el("div", { class: "panels" });
  parent.append(panels);
  for (const row of rows) {
    const panel = el("div", {}, el("h3", {}, titleOf(row)));
    panels.append(panel);
    chart(panel, `Memory by stage of ${row.label}: ` + row.stages.map((s, i) => `stage ${i} ${gib(total(s))} GiB`).join(", "), (host, width) => {
      const height = 170, bottom = 22, left = 30;
      const svg = svgIn(host, width, height);
      const x = d3.scaleBand().domain(d3.range(row.stages.length)).range([left, width - 2]).padding(0.15);
      const y = d3.scaleLinear().domain([0, most / 2 ** 30]).nice(5).range([height - bottom, 8]);
      svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(4).tickSize(-(width - left)));
      const every = Math.ceil(row.stages.length / (width / 24));
      svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`)
        .call(d3.axisBottom(x).tickFormat((i) => (i % every === 0 ? i : "")).tickSize(0).tickPadding(6));
      const stage = svg.selectAll("g.stage").data(row.stages).join("g").attr("class", "stage").attr("transform", (_, i) => `translate(${x(i)},0)`);
      stage.selectAll("rect").data((s) => {
        let from = 0;
        return used.filter((part) => s.parts[part]).map((part) => ({ part, from, to: (from += s.parts[part] / 2 ** 30) }));
      }).join("rect").attr("width", x.bandwidth()).attr("y", (p) => y(p.to)).attr("height", (p) => Math.max(0, y(p.from) - y(p.to)))
        .style("fill", (p) => kPartColours[p.part]);
      svg.append("line").attr("class", "reference").attr("x1", left).attr("x2", width).attr("y1", y(capacity / 2 ** 30)).attr("y2", y(capacity / 2 ** 30));
      const areas = svg.selectAll("rect.area").data(row.stages.map((s, i) => ({ ...s, i }))).join("rect").attr("class", "area")
        .attr("x", (s) => x(s.i)).attr("width", x.bandwidth()).attr("y", 8).attr("height", height - bottom - 8).style("fill", "transparent");
      tooltips(areas, (s) => [`${row.label}, stage ${s.i}: ${gib(total(s))} GiB`,
        ...used.filter((part) => s.parts[part]).sort((a, b) => s.parts[b] - s.parts[a]).map((part) => `${partName(part)} ${gib(s.parts[part])}`)]);
    });
    behind(panel, [["stage", true], ["GiB", false], ...used.map((part) => [partName(part), false])],
      row.stages.map((s, i) => [String(i), gib(total(s)), ...used.map((part) => gib(s.parts[part] || 0))]));
  }
}

// One chart with a bar per row, for when there is only one stage.
function memoryBars(parent, rows, titleOf, used, total, capacity, most) {
  const size = (bytes) => bytes / 2 ** 30;
  const partsOf = (row) => used.filter((part) => row.stages[0].parts[part]);
  stackedRows(parent, "Memory by policy: " + rows.map((row) => `${row.label} ${gib(total(row.stages[0]))} GiB`).join(", "), rows.map((row) => ({
    label: titleOf(row), right: `${gib(total(row.stages[0]))} GiB`,
    parts: partsOf(row).map((part) => ({ name: partName(part), share: size(row.stages[0].parts[part]), text: `${gib(row.stages[0].parts[part])} GiB` })) })),
  (name) => kPartColours[used.find((part) => partName(part) === name)], size(most), (value) => String(value), size(capacity));
  behind(parent, [["policy", true], ["GiB", false], ...used.map((part) => [partName(part), false])],
    rows.map((row) => [row.label, gib(total(row.stages[0])), ...used.map((part) => gib(row.stages[0].parts[part] || 0))]));
}
