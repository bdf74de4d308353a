// The critical path of a step: which kind of op sets its time, and what it would take if that were free.

const kAxisNames = { compute: "computation", tp: "TP communication", cp: "CP communication", ep: "EP communication", pp: "transfers between stages", dp: "gradient and parameter exchange" };

function pathSection() {
  const rows = data.rows.filter((row) => row.critical_path && row.critical_path.steps && row.critical_path.steps.length);
  if (!rows.length) return;  // the section of losses says how to get it
  const parent = section("path", "What sets the time of a step");
  const steps = rows.map((row) => ({ label: row.label, ...row.critical_path.steps[0] }));
  parent.append(el("p", {}, `The critical path of step ${steps[0].step}: the chain of ops that nothing else could have overtaken. Policies train other documents in one step: the table above compares them over all steps.`));
  const axes = Object.keys(kAxisNames).filter((axis) => steps.some((step) => step.by_axis[axis] > 0));
  const colour = (name) => kLossColours[name];
  parent.append(legend(axes.map((axis) => [kAxisNames[axis], colour(kAxisNames[axis])])));
  const longest = Math.max(...steps.map((step) => step.step_seconds));
  stackedRows(parent, "Critical path by kind of op", steps.map((step) => ({ label: step.label, right: seconds(step.step_seconds),
    parts: axes.filter((axis) => step.by_axis[axis] > 0).map((axis) => ({ name: kAxisNames[axis], share: step.by_axis[axis],
      text: `${seconds(step.by_axis[axis])}, ${percent(step.by_axis[axis] / step.step_seconds)} of the step` })) })),
  colour, longest, (value) => +value.toPrecision(3) + " s");
  behind(parent, [["policy", true], ["step s", false], ...axes.map((axis) => [kAxisNames[axis] + " s", false])],
    steps.map((step) => [step.label, step.step_seconds.toFixed(4), ...axes.map((axis) => fixedOr(step.by_axis[axis], 4))]));
  const free = steps.flatMap((step) => Object.entries(step.if_free || {}).map(([what, f]) =>
    [step.label, kAxisNames[what] || what.replaceAll("_", " "), f.step_seconds.toFixed(4), f.speedup.toFixed(3) + "x"]));
  if (!free.length) return;
  parent.append(el("h3", {}, "If it were free"));
  behind(parent, [["policy", true], ["free", true], ["step s", false], ["speed-up", false]], free, "The same step, were an axis, a stage or the heaviest micro-batch free").open = free.length <= 12;
}
