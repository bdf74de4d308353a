// Compute time of every GPU in one step: a map, and the GPUs in order of their load (WLB-LLM's Fig. 1 and 4).

function gpuAt(load, stage, column) {
  const replica = Math.floor(column / load.tensor), tp = column % load.tensor;
  return load.relative[(stage * load.replicas + replica) * load.tensor + tp] / 1000;
}

function drawMap(host, width, load, scale) {
  const columns = load.replicas * load.tensor;
  const tall = Math.max(5, Math.min(22, 260 / load.stages));
  const dense = devicePixelRatio || 1;
  const left = 22;
  const canvas = el("canvas", { width: Math.round(width * dense), height: Math.round(load.stages * tall * dense), "aria-hidden": "true" });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${load.stages * tall}px`;
  host.append(canvas);
  const context = canvas.getContext("2d");
  context.scale(dense, dense);
  const wide = (width - left) / columns;
  const gap = wide > 5 ? 0.6 : 0;
  context.fillStyle = cssColour("--soft");
  context.font = "11px system-ui, sans-serif";
  const every = Math.ceil(12 / tall);
  for (let s = 0; s < load.stages; s += every) context.fillText(String(s), 0, s * tall + Math.max(9, tall / 2 + 4));
  for (let s = 0; s < load.stages; ++s)
    for (let c = 0; c < columns; ++c) {
      context.fillStyle = scale(gpuAt(load, s, c));
      context.fillRect(left + c * wide, s * tall, wide - gap + (gap ? 0 : 0.3), tall - (tall > 7 ? 0.6 : 0));
    }
  canvas.addEventListener("mousemove", (event) => {
    const c = Math.floor((event.offsetX - left) / wide), s = Math.floor(event.offsetY / tall);
    if (c < 0 || c >= columns || s < 0 || s >= load.stages) return hideTip();
    const replica = Math.floor(c / load.tensor);
    const value = gpuAt(load, s, c);
    showTip([`${value.toFixed(3)}x the mean`, `stage ${s}, DP ${Math.floor(replica / load.context)}, CP ${replica % load.context}` + (load.tensor > 1 ? `, TP ${c % load.tensor}` : ""),
      seconds(value * load.mean_seconds) + " of compute"], event.clientX, event.clientY);
  });
  canvas.addEventListener("mouseleave", hideTip);
}

function loadScale(spread) {
  const mix = d3.interpolateLab;
  const below = mix(cssColour("--mid"), cssColour("--low")), above = mix(cssColour("--mid"), cssColour("--high"));
  return (value) => (value < 1 ? below(Math.min(1, (1 - value) / spread)) : above(Math.min(1, (value - 1) / spread)));
}

function gpusSection(study) {
  const all = data.rows.filter((row) => row.gpus).map((row) => ({ ...row.gpus, label: row.label }));
  const loads = all.filter((load) => load.relative.length);
  const large = loads.length < all.length;
  if (!loads.length && !large) return;
  const gpus = study.study.gpus;
  const parent = section("gpus", `The load of ${grouped(gpus)} GPUs`,
    "Compute seconds of every GPU over the mean of all, in each policy’s step of median time. Rows are pipeline stages, columns the data- and context-parallel replicas.",
    loads.length && loads[0].same_tensor > 1 ? `Each cell is a tensor-parallel group of ${loads[0].same_tensor} GPUs, which do the same.` : "",
    large ? "Policies with more GPUs than a page can hold are in gpus.csv." : "");
  if (!loads.length) return;
  const spread = Math.max(0.05, ...loads.map((load) => largest(load.relative) / 1000 - 1));
  parent.append(legend([["less than the mean", "var(--low)"], ["mean", "var(--mid)"], [`up to ${(1 + spread).toFixed(2)}x the mean`, "var(--high)"]]));
  const panels = el("div", { class: "panels" });
  parent.append(panels);
  for (const load of loads) {
    const slowest = largest(load.relative) / 1000;
    const panel = el("div", {}, el("h3", {}, load.label), el("p", { class: "note" }, `slowest ${slowest.toFixed(2)}x the mean, step ${load.step}`));
    panels.append(panel);
    chart(panel, `Load of each GPU under ${load.label}, slowest ${slowest.toFixed(2)} times the mean`, (host, width) => drawMap(host, width, load, loadScale(spread)));
  }
  const sorted = loads.map((load) => ({ label: load.label, values: load.relative.slice().sort((a, b) => a - b).map((v) => v / 1000) }));
  parent.append(el("h3", {}, "The same GPUs from least to most loaded"), legend(loads.map((load) => [load.label, colourOf(load.label)])));
  chart(parent, "GPUs in order of load, relative to the mean", (host, width) => {
    const height = 230, left = 36, bottom = 40;
    const svg = svgIn(host, width, height);
    const x = d3.scaleLinear().domain([0, 1]).range([left, width - 22]);
    const ends = sorted.flatMap((row) => [row.values[0], row.values[row.values.length - 1]]);
    const y = d3.scaleLinear().domain([Math.min(...ends, 0.98), Math.max(...ends, 1.02)]).nice(5).range([height - bottom, 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(5).tickSize(-(width - left - 22)));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`).call(d3.axisBottom(x).ticks(5).tickFormat((v) => percent(v, 0)).tickSize(0).tickPadding(8));
    svg.append("text").attr("class", "soft").attr("x", width - 10).attr("y", height - 5).attr("text-anchor", "end").text("share of GPUs; compute time over the mean");
    svg.append("line").attr("class", "reference").attr("x1", left).attr("x2", width - 22).attr("y1", y(1)).attr("y2", y(1));
    const line = d3.line().x((p) => x(p[0])).y((p) => y(p[1])).curve(d3.curveStepAfter);
    for (const row of sorted) {
      const n = row.values.length, every = Math.max(1, Math.floor(n / 800));
      const points = row.values.map((v, i) => [(i + 1) / n, v]).filter((_, i) => i % every === 0 || i === n - 1);
      svg.append("path").attr("d", line([[0, row.values[0]], ...points])).style("fill", "none").style("stroke", colourOf(row.label)).style("stroke-width", 2);
    }
  });
  behind(parent, [["policy", true], ["least", false], ["p10", false], ["median", false], ["p90", false], ["most", false]],
    sorted.map((row) => [row.label, ...[0, 0.1, 0.5, 0.9, 1].map((q) => row.values[Math.min(row.values.length - 1, Math.floor(q * row.values.length))].toFixed(3))]));
}
