#include "sim/validation/in_step.h"

#include <vector>

#include "sim/validation/noise.h"
#include "sim/validation/step_ops.h"

namespace equipoise {
namespace {

struct Point {
  double alone = 0, measured = 0;
};

InStepTimes::Line fit_line(std::span<const Point> points) {
  const auto n = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const Point& p : points) {
    x += p.alone;
    y += p.measured;
    xx += p.alone * p.alone;
    xy += p.alone * p.measured;
  }
  InStepTimes::Line line;
  line.ops = static_cast<std::int64_t>(points.size());
  const double spread = n * xx - x * x;
  // Ops of one size know no slope of their own: the line then goes through the origin, as it does where a
  // free one would cut below it.
  if (spread > 1e-6 * n * xx) {
    line.factor = (n * xy - x * y) / spread;
    line.extra_seconds = (y - line.factor * x) / n;
    if (line.factor < 0) return {y / n, 0, line.ops};
    if (line.extra_seconds >= 0) return line;
  }
  line.extra_seconds = 0;
  line.factor = y / x;
  return line;
}

}  // namespace

InStepTimes::InStepTimes(std::span<const OpPair> ops) {
  std::map<std::string, std::vector<Point>> kinds;
  for (const OpPair& op : ops)
    if (const double measured = median(op.measured_seconds); measured > 0 && op.predicted_seconds > 0)
      kinds[op.op].push_back({op.predicted_seconds, measured});
  for (const auto& [kind, points] : kinds)
    if (static_cast<std::int64_t>(points.size()) >= kLeastOps) lines_[kind] = fit_line(points);
}

double InStepTimes::seconds(const std::string& kind, double alone) const {
  const auto found = lines_.find(kind);
  return found == lines_.end() ? alone : found->second.extra_seconds + found->second.factor * alone;
}

OpProgram in_step(OpProgram program, const InStepTimes& times) {
  const auto change = [&](const std::string& kind, Picoseconds& duration) {
    if (duration > 0) duration = to_picoseconds(times.seconds(kind, to_seconds(duration)));
  };
  for (OpLane& lane : program.lanes) {
    const auto context = static_cast<std::size_t>(lane.context);
    for (OpBlock& block : lane.blocks)
      for (std::size_t i = 0; i < block.steps.size(); ++i) {
        const OpStep& step = block.steps[i];
        if (step.name == OpName::host_stall) continue;
        const std::string kind = kind_of(step.name, step.sync, block.role);
        for (std::size_t r = 0; r < context; ++r) change(kind, block.durations[i * context + r]);
      }
    for (Picoseconds& transfer : lane.transfers) change(name_of(OpName::pp_send), transfer);
  }
  for (StageEnd& end : program.ends)
    for (std::size_t i = 0; i < end.steps.size(); ++i) change(name_of(end.steps[i].name), end.durations[i]);
  return program;
}

}  // namespace equipoise
