// The pipeline of a step, op by op, in two panels on one time axis, so that two policies can be compared.

const kOpNames = ["forward", "backward", "forward, dropped again", "forward, again", "weight gradients"];
const kOpLetters = "FBDRW";
const kOpColours = ["var(--forward)", "var(--backward)", "var(--forward_drop)", "var(--again)", "var(--weights)"];

function opsOf(lane) {
  const ops = [];
  for (let i = 0; i < lane.ops.length; i += 6) {
    const [stage, kind, microBatch, virtualStage, start, time] = lane.ops.slice(i, i + 6);
    ops.push({ place: ops.length, stage, kind, microBatch, virtualStage, start, end: start + time });
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

// The part of a step that the panels show, in microseconds: the whole step until the reader zooms in.
class TimeWindow {
  constructor() { this.begin = this.end = this.whole = 0; }

  // Adopts the length of the step that is shown and keeps the view as far as the step reaches.
  setWhole(whole) {
    const all = this.end - this.begin >= this.whole;
    this.whole = whole;
    if (all) [this.begin, this.end] = [0, whole];
    else this.move(0);
  }
  zoom(times, at = (this.begin + this.end) / 2) {
    const span = Math.min(this.whole, Math.max(this.whole / 400, (this.end - this.begin) / times));
    this.begin = at - (at - this.begin) * span / (this.end - this.begin);
    this.end = this.begin + span;
    this.move(0);
  }
  move(by) {
    const span = Math.min(this.whole, this.end - this.begin);
    this.begin = Math.max(0, Math.min(this.begin + by, this.whole - span));
    this.end = this.begin + span;
  }
}

class TimelinePanel {
  constructor(parent, rows, label, time, changed, redrawAll) {
    Object.assign(this, { rows, time, changed, redrawAll, step: 0, lane: 0, pointers: new Map() });
    this.row = rows.find((row) => row.label === label) || rows[0];
    this.controls = el("div", { class: "controls", role: "group" });
    this.about = el("p", { class: "note" });
    this.scroll = el("div", { class: "pipeline", tabindex: "0", role: "region" });
    this.table = el("div");
    parent.append(this.controls, this.about, this.scroll);
    this.redraw = chart(parent, "Pipeline timeline", (host, width) => this.draw(host, width), this.scroll);
    parent.append(this.table);
    this.scroll.addEventListener("keydown", (event) => this.walk(event));
    this.scroll.addEventListener("blur", hideTip);
    this.listen();
  }
  get drawnStep() { return this.row.drawn[this.step]; }
  get name() { return `Pipeline of ${this.row.label}, step ${this.drawnStep.step}, lane ${this.drawnLane.lane}`; }
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
    const button = (text, name, act) => el("button", { type: "button", "aria-label": name, onclick: () => this.zoomed(act) }, text);
    renew(this.controls,
      select("Policy", this.rows.map((row) => [row.label, row.label]), this.row.label, rowAct),
      select("Step", steps, this.step, change("step")), select("Lane", lanes, this.lane, change("lane")),
      button("+", "Zoom in", () => this.time.zoom(2)), button("−", "Zoom out", () => this.time.zoom(0.5)),
      button("All", "Show the whole step", () => this.time.zoom(0)));
    this.controls.setAttribute("aria-label", this.name);
    this.scroll.setAttribute("aria-label", `${this.name}: arrow keys go from op to op, + and − zoom, 0 shows all`);
    const left = this.drawnStep.of_lanes - this.drawnStep.lanes.length;
    this.about.textContent = `Step ${this.drawnStep.step} takes ${seconds(this.drawnStep.end / 1e6)}, of which ${seconds(this.drawnStep.pipeline / 1e6)} are pipeline.` +
      (left > 0 ? ` ${left} of its ${this.drawnStep.of_lanes} lanes are not drawn here.` : "");
    const lane = this.drawnLane;
    this.table.replaceChildren();
    behind(this.table, [["micro-batch", true], ["tokens", false], ["pieces", false], ["longest", false], ["forward", false], ["documents", true]],
      lane.micro_batches.map(([count, slices, longest, forward, documents], i) =>
        [String(i), grouped(count), String(slices), grouped(longest), seconds(forward / 1e6), documents]), "Micro-batches of this lane", this.name);
    if (this.redraw) this.redraw();
  }

  // Redraws both panels, once per frame.
  zoomed(act) {
    act();
    hideTip();
    if (!this.waiting) requestAnimationFrame(() => {
      this.waiting = false;
      this.redrawAll();
    });
    this.waiting = true;
  }

  // A drag pans; two fingers and a double click zoom. The wheel zooms with Ctrl, or if the panel has the
  // keyboard, so that scrolling past does not zoom.
  listen() {
    const host = this.scroll, pointers = this.pointers;
    const timeAt = (x) => this.x ? this.x.invert(x - host.getBoundingClientRect().left) : 0;
    const perPixel = () => (this.time.end - this.time.begin) / Math.max(1, this.inner);
    host.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== host) return;
      event.preventDefault();
      this.zoomed(() => (Math.abs(event.deltaX) > Math.abs(event.deltaY) ? this.time.move(event.deltaX * perPixel())
        : this.time.zoom(Math.exp(-event.deltaY / 300), timeAt(event.clientX))));
    }, { passive: false });
    host.addEventListener("dblclick", (event) => this.zoomed(() => this.time.zoom(2, timeAt(event.clientX))));
    host.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pointers.set(event.pointerId, event.clientX);
      host.setPointerCapture(event.pointerId);
    });
    host.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return;
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event.clientX);
      const now = [...pointers.values()];
      const middle = (all) => all.reduce((a, b) => a + b, 0) / all.length;
      this.zoomed(() => {
        this.time.move((middle(before) - middle(now)) * perPixel());
        const apart = [before, now].map((all) => Math.abs(all[0] - all[all.length - 1]));
        if (now.length === 2 && apart[0] > 4) this.time.zoom(apart[1] / apart[0], timeAt(middle(now)));
      });
    });
    for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }

  draw(host, width) {
    this.ops = opsOf(this.drawnLane);
    const stages = largest(this.ops.map((op) => op.stage)) + 1;
    const tall = stages > 12 ? 18 : 26;
    const left = 26, right = 12;
    this.inner = width - left - right;
    host.setAttribute("aria-label", this.name);
    const svg = svgIn(host, width, stages * tall + 40);
    const x = this.x = d3.scaleLinear().domain([this.time.begin, this.time.end]).range([left, width - right]).clamp(false);
    const part = (op) => [Math.max(left, x(op.start)), Math.min(width - right, x(op.end))];
    const seen = this.ops.filter((op) => op.end > this.time.begin && op.start < this.time.end);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${stages * tall + 4})`)
      .call(d3.axisBottom(x).ticks(width < 500 ? 4 : 8).tickFormat((v) => +(v / 1e6).toPrecision(6)).tickSize(-stages * tall - 4));
    svg.append("text").attr("class", "soft").attr("x", width - 12).attr("y", stages * tall + 37).attr("text-anchor", "end").text("seconds into the step");
    svg.selectAll("text.stage").data(d3.range(stages)).join("text").attr("class", "soft").attr("x", 0)
      .attr("y", (s) => s * tall + tall * 0.7).text((s) => (tall > 20 || s % 2 === 0 ? s : ""));
    this.marks = svg.selectAll("rect.op").data(seen).join("rect").attr("class", "op").attr("x", (op) => part(op)[0]).attr("y", (op) => op.stage * tall + 1)
      .attr("width", (op) => Math.max(0.6, part(op)[1] - part(op)[0] - 0.4)).attr("height", tall - 3)
      .style("fill", (op) => kOpColours[op.kind]);
    tooltips(this.marks, (op) => opLines(op, this.drawnLane, this.row.label), false);
    const room = (op) => (part(op)[1] - part(op)[0]) / String(op.microBatch).length;  // pixels a digit
    const named = seen.filter((op) => room(op) > 6.8);
    svg.selectAll("text.op").data(named).join("text").attr("class", "op").attr("x", (op) => (part(op)[0] + part(op)[1]) / 2)
      .attr("y", (op) => op.stage * tall + tall * 0.68).attr("text-anchor", "middle").style("pointer-events", "none").style("font-size", (op) => (tall > 20 && room(op) > 10 ? "13px" : "11px"))
      .style("fill", (op) => (op.kind === 1 ? "#fff" : "#111")).text((op) => op.microBatch);
    const pipeline = Math.max(this.drawnStep.pipeline, this.time.begin), end = Math.min(this.drawnStep.end, this.time.end);
    svg.append("rect").attr("x", x(pipeline)).attr("width", Math.max(0, x(end) - x(pipeline))).attr("y", 1).attr("height", stages * tall - 3)
      .style("fill", "var(--line)").style("fill-opacity", 0.6).append("title").text("gradients and optimizer");
    this.mark(false);
  }

  // Marks the op that the keyboard has reached, if it is in the window.
  mark(speak) {
    this.marks.attr("class", (op) => (op.place === this.chosen ? "op chosen" : "op"));
    const node = this.marks.filter((op) => op.place === this.chosen).node();
    if (!node || !speak) return;
    const box = node.getBoundingClientRect();
    showTip(opLines(this.ops[this.chosen], this.drawnLane, this.row.label), box.left, box.bottom);
  }

  // Arrow keys go along a stage and from stage to stage. An op outside the window is moved into it.
  walk(event) {
    const zoom = { "+": 2, "=": 2, "-": 0.5, "−": 0.5, 0: 0 }[event.key];
    if (zoom !== undefined && !event.ctrlKey) return this.zoomed(() => this.time.zoom(zoom));
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!this.marks || (!step && !down)) return;
    event.preventDefault();
    const ops = this.ops;
    if (this.chosen === undefined || this.chosen >= ops.length) this.chosen = 0;
    else if (step) this.chosen = (this.chosen + step + ops.length) % ops.length;
    else {
      const from = ops[this.chosen];
      const there = ops.filter((op) => op.stage === from.stage + down);
      if (!there.length) return;
      this.chosen = there.reduce((a, b) => (Math.abs(b.start - from.start) < Math.abs(a.start - from.start) ? b : a)).place;
    }
    const op = ops[this.chosen];
    if (op.start < this.time.begin || op.end > this.time.end) {
      this.time.move((op.start + op.end - this.time.begin - this.time.end) / 2);
      this.redrawAll();
    }
    this.mark(true);
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
  parent.append(el("p", { class: "note" }, "Drag to pan; pinch, double-click or Ctrl and the wheel to zoom; by keyboard + and −. Numbers are micro-batches."));
  const panels = [], time = new TimeWindow();
  const changed = () => {
    time.setWhole(Math.max(...panels.map((panel) => panel.drawnStep.end)));
    for (const panel of panels) panel.show();
  };
  const redrawAll = () => {
    for (const panel of panels) if (panel.redraw) panel.redraw();
  };
  const other = rows.find((row) => row.label !== study.baseline);
  const firsts = [study.baseline, data.winner === study.baseline ? other && other.label : data.winner].filter((label) =>
    rows.some((row) => row.label === label));
  for (const label of firsts.length ? firsts : [rows[0].label]) {
    const panel = el("div");
    parent.append(panel);
    panels.push(new TimelinePanel(panel, rows, label, time, changed, redrawAll));
  }
  changed();
}
