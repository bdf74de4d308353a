// The pipeline of a step, op by op: two panels on one time axis, so that two policies can be held side by side.

const kOpNames = ["forward", "backward", "forward, dropped again", "forward, again", "weight gradients"];
const kOpLetters = "FBDRW";
const kOpColours = ["var(--forward)", "var(--backward)", "var(--forward_drop)", "var(--again)", "var(--weights)"];

function opsOf(lane) {
  const ops = [];
  for (let i = 0; i < lane.ops.length; i += 6) {
    const [stage, kind, microBatch, virtualStage, start, time] = lane.ops.slice(i, i + 6);
    ops.push({ stage, kind, microBatch, virtualStage, start, end: start + time });
  }
  return ops;
}

function opLines(op, lane, where) {
  const [count, slices, longest, , documents] = lane.micro_batches[op.microBatch] || [0, 0, 0, 0, ""];
  const part = op.virtualStage > 0 ? ` of virtual stage ${op.virtualStage}` : "";
  return [`${kOpLetters[op.kind]}${op.microBatch}: ${kOpNames[op.kind]}${part}`,
    `${where}, stage ${op.stage}, lane ${lane.lane}`,
    `${seconds((op.end - op.start) / 1e6)}, from ${seconds(op.start / 1e6)} to ${seconds(op.end / 1e6)}`,
    `${grouped(count)} tokens in ${slices} ${slices === 1 ? "piece" : "pieces"}, longest ${grouped(longest)}`,
    documents ? `documents ${documents}` : ""];
}

class TimelinePanel {
  constructor(parent, rows, label, changed) {
    Object.assign(this, { rows, changed, step: 0, lane: 0, zoom: 1 });
    this.row = rows.find((row) => row.label === label) || rows[0];
    this.end = this.drawnStep.end;
    this.controls = el("div", { class: "controls" });
    this.about = el("p", { class: "note" });
    this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline: arrow keys go from op to op" });
    this.table = el("div");
    parent.append(this.controls, this.about, this.scroll, this.table);
    this.redraw = chart(this.scroll, "Pipeline timeline", (host, width) => this.draw(host, width));
    this.scroll.addEventListener("keydown", (event) => this.walk(event));
    this.scroll.addEventListener("blur", hideTip);
  }
  get drawnStep() { return this.row.drawn[this.step]; }
  get drawnLane() { return this.drawnStep.lanes[this.lane]; }

  show() {
    const change = (key) => (value) => {
      this[key] = Number(value);
      if (key !== "lane") this.lane = 0;
      this.changed();
    };
    const steps = this.row.drawn.map((s, i) => [i, `${s.step}: ${s.why}, ${seconds(s.end / 1e6)}`]);
    const lanes = this.drawnStep.lanes.map((lane, i) => [i, `${lane.lane}${i === 0 && this.drawnStep.of_lanes > 1 ? " (ends last)" : i === 1 ? " (ends first)" : ""}`]);
    const rowAct = (label) => {
      this.row = this.rows.find((row) => row.label === label);
      this.step = this.lane = 0;
      this.changed();
    };
    renew(this.controls,
      select("Policy", this.rows.map((row) => [row.label, row.label]), this.row.label, rowAct),
      select("Step", steps, this.step, change("step")), select("Lane", lanes, this.lane, change("lane")),
      select("Zoom", [1, 2, 4, 8, 16].map((z) => [z, z + "x"]), this.zoom, (z) => { this.zoom = Number(z); this.redraw && this.redraw(); }));
    const left = this.drawnStep.of_lanes - this.drawnStep.lanes.length;
    this.about.textContent = `Step ${this.drawnStep.step} takes ${seconds(this.drawnStep.end / 1e6)}, of which ${seconds(this.drawnStep.pipeline / 1e6)} are pipeline.` +
      (left > 0 ? ` ${left} of its ${this.drawnStep.of_lanes} lanes are left out here.` : "");
    const lane = this.drawnLane;
    this.table.replaceChildren();
    behind(this.table, [["micro-batch", true], ["tokens", false], ["pieces", false], ["longest", false], ["forward", false], ["documents", true]],
      lane.micro_batches.map(([count, slices, longest, forward, documents], i) =>
        [String(i), grouped(count), String(slices), grouped(longest), seconds(forward / 1e6), documents]), "Micro-batches of this lane");
    if (this.redraw) this.redraw();
  }

  draw(host, available) {
    const width = available * this.zoom;
    const ops = this.ops = opsOf(this.drawnLane);
    const stages = Math.max(...ops.map((op) => op.stage)) + 1;
    const tall = stages > 12 ? 16 : 26;
    const left = 26;
    const svg = svgIn(host, width, stages * tall + 40);
    const x = d3.scaleLinear().domain([0, this.end]).range([left, width - 12]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${stages * tall + 4})`)
      .call(d3.axisBottom(x).ticks((width < 500 ? 4 : 8) * Math.min(4, this.zoom)).tickFormat((v) => +(v / 1e6).toPrecision(6)).tickSize(-stages * tall - 4));
    svg.append("text").attr("class", "soft").attr("x", width - 12).attr("y", stages * tall + 37).attr("text-anchor", "end").text("seconds into the step");
    svg.selectAll("text.stage").data(d3.range(stages)).join("text").attr("class", "soft").attr("x", 0)
      .attr("y", (s) => s * tall + tall * 0.7).text((s) => (tall > 20 || s % 2 === 0 ? s : ""));
    this.marks = svg.selectAll("rect").data(ops).join("rect").attr("x", (op) => x(op.start)).attr("y", (op) => op.stage * tall + 1)
      .attr("width", (op) => Math.max(0.6, x(op.end) - x(op.start) - 0.4)).attr("height", tall - 3)
      .style("fill", (op) => kOpColours[op.kind]);
    tooltips(this.marks, (op) => opLines(op, this.drawnLane, this.row.label));
    const named = ops.filter((op) => tall > 20 && x(op.end) - x(op.start) > 18);
    svg.selectAll("text.op").data(named).join("text").attr("class", "op").attr("x", (op) => (x(op.start) + x(op.end)) / 2)
      .attr("y", (op) => op.stage * tall + tall * 0.66).attr("text-anchor", "middle").style("pointer-events", "none")
      .style("fill", (op) => (op.kind === 1 ? "#fff" : "#111")).text((op) => op.microBatch);
    const pipeline = this.drawnStep.pipeline, end = this.drawnStep.end;
    svg.append("rect").attr("x", x(pipeline)).attr("width", Math.max(0, x(end) - x(pipeline))).attr("y", 1).attr("height", stages * tall - 3)
      .style("fill", "var(--line)").style("fill-opacity", 0.6).append("title").text("gradients and optimizer");
    this.chosen = -1;
  }

  // Arrow keys go along a stage, and from stage to stage.
  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!this.marks || (!step && !down)) return;
    event.preventDefault();
    const ops = this.ops;
    if (this.chosen < 0) this.chosen = 0;
    else if (step) this.chosen = (this.chosen + step + ops.length) % ops.length;
    else {
      const from = ops[this.chosen];
      const there = ops.filter((op) => op.stage === from.stage + down);
      if (!there.length) return;
      this.chosen = ops.indexOf(there.reduce((a, b) => (Math.abs(b.start - from.start) < Math.abs(a.start - from.start) ? b : a)));
    }
    this.marks.attr("class", (_, i) => (i === this.chosen ? "chosen" : null));
    const mark = this.marks.nodes()[this.chosen];
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = mark.getBoundingClientRect();
    showTip(opLines(ops[this.chosen], this.drawnLane, this.row.label), box.left, box.bottom);
  }
}

function timelineSection(study) {
  const rows = data.rows.map((row) => ({ ...row, drawn: row.drawn.filter((step) => step.lanes.length) })).filter((row) => row.drawn.length);
  const without = data.rows.filter((row) => row.drawn.length && !rows.some((r) => r.label === row.label)).map((row) => row.label);
  if (!rows.length && !without.length) return;
  const parent = section("timeline", "What the pipeline does",
    "One row a pipeline stage, each box an op on a micro-batch, from its first to its last rank; what is empty is waiting. Both panels share the time axis.",
    "Every policy has a few telling steps here; their list says why. timeline/ has the first steps for ui.perfetto.dev.",
    without.length ? `Too large to draw here: ${without.join(", ")}.` : "");
  if (!rows.length) return;
  const kinds = new Set(rows.flatMap((row) => row.drawn.flatMap((s) => s.lanes.flatMap((lane) => opsOf(lane).map((op) => op.kind)))));
  parent.append(legend([...kinds].sort().map((kind) => [`${kOpLetters[kind]}: ${kOpNames[kind]}`, kOpColours[kind]])
    .concat([["gradients, optimizer", "var(--line)"]])));
  const panels = [];
  const changed = () => {
    const end = Math.max(...panels.map((panel) => panel.drawnStep.end));
    for (const panel of panels) {
      panel.end = end;
      panel.show();
    }
  };
  const other = rows.find((row) => row.label !== study.baseline);
  const firsts = [study.baseline, data.winner === study.baseline ? other && other.label : data.winner].filter((label) =>
    rows.some((row) => row.label === label));
  for (const label of firsts.length ? firsts : [rows[0].label]) {
    const panel = el("div");
    parent.append(panel);
    panels.push(new TimelinePanel(panel, rows, label, changed));
  }
  changed();
}
