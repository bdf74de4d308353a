#include "sim/validation/step_ops.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;
using execution::RankPlace;
using execution::RecordedOp;
using execution::StepRecord;

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
  // Ops of one size show no slope, so the line goes through the origin. It also does if a free line would cut
  // the axis below it.
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

std::string kind_of(OpName name, SyncGroup sync, BlockRole role) {
  const bool backward = role == BlockRole::layer_backward || role == BlockRole::layer_input_gradient ||
                        role == BlockRole::head_backward || role == BlockRole::embedding_backward;
  const bool kernel = sync == SyncGroup::none;
  const std::string text = name_of(name);
  return backward && kernel && name != OpName::input_gradient && name != OpName::weight_gradient
             ? text + " backward"
             : text;
}

StepOps::StepOps(const ExecutableStep& step, const RankGrid& grid, const std::vector<StepRecord>& ranks)
    : step_(step) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankPlace place = execution::place_of(grid, static_cast<int>(r));
    for (const RecordedOp& recorded : ranks[r].ops) {
      ops_.push_back(describe(recorded, static_cast<int>(r), place));
      if (recorded.lane >= 0)  // the last one of a scheduled op remains
        ends_[{place.stage, place.replica, place.tensor, recorded.lane, recorded.scheduled}] =
            recorded.end_ns;
    }
  }
  for (const StepOp& op : ops_) {
    if (op.sync == SyncGroup::none && !op.at_end) continue;
    std::int64_t& latest = arrivals_[collective_of(op)];
    latest = std::max(latest, op.recorded->begin_ns);
  }
}

double StepOps::measured_seconds(const StepOp& op) const {
  std::int64_t begin = op.recorded->begin_ns;
  if (const auto arrived = arrivals_.find(collective_of(op)); arrived != arrivals_.end())
    begin = std::max(begin, arrived->second);
  if (op.name == OpName::pp_send) begin = std::max(begin, sent_at(op));
  return 1e-9 * static_cast<double>(std::max<std::int64_t>(0, op.recorded->end_ns - begin));
}

StepOp StepOps::describe(const RecordedOp& recorded, int rank, const RankPlace& place) const {
  StepOp op;
  op.recorded = &recorded;
  op.rank = rank;
  op.place = place;
  op.name = static_cast<OpName>(recorded.name);
  op.at_end = recorded.lane < 0;
  if (op.at_end) {
    const StageEnd& end = step_.program.ends[at(place.stage)];
    op.simulated_seconds = to_seconds(end.durations[at(recorded.step)]);
    return op;
  }
  const OpLane& lane = step_.program.lanes[at(recorded.lane)];
  const ScheduledOp& scheduled = lane.stages[at(place.stage)][at(recorded.scheduled)];
  op.micro_batch = scheduled.op.micro_batch;
  const int cp_rank = place.replica - lane.first_replica;
  if (recorded.run < 0) {
    op.simulated_seconds = to_seconds(lane.transfers[at(scheduled.transfer) + at(cp_rank)]);
    return op;
  }
  const OpBlock& block =
      lane.blocks[lane.runs[scheduled.first_run + static_cast<std::uint32_t>(recorded.run)].block];
  op.sync = block.steps[at(recorded.step)].sync;
  op.role = block.role;
  op.simulated_seconds = to_seconds(block.durations[at(recorded.step * lane.context + cp_rank)]);
  return op;
}

// The key is the same for all members of a collective.
StepOps::CollectiveKey StepOps::collective_of(const StepOp& op) const {
  const RecordedOp& r = *op.recorded;
  const RankPlace& p = op.place;
  if (op.at_end)
    return {-1, p.stage, r.step, 0, 0, 0, op.name == OpName::optimizer ? p.replica : -1, p.tensor};
  if (r.run < 0 || op.sync == SyncGroup::none)
    return {r.lane, p.stage, r.scheduled, r.run, r.repetition, r.step, p.replica, p.tensor};
  return {r.lane,
          p.stage,
          r.scheduled,
          r.run,
          r.repetition,
          r.step,
          op.sync == SyncGroup::context ? -1 : p.replica,
          op.sync == SyncGroup::tensor ? -1 : p.tensor};
}

// The time at which the scheduled op that made the input ended on the rank that sends it.
std::int64_t StepOps::sent_at(const StepOp& op) const {
  const OpLane& lane = step_.program.lanes[at(op.recorded->lane)];
  const ScheduledOp& scheduled = lane.stages[at(op.place.stage)][at(op.recorded->scheduled)];
  const auto found = ends_.find(
      {scheduled.input_stage, op.place.replica, op.place.tensor, op.recorded->lane, scheduled.input_op});
  return found == ends_.end() ? 0 : found->second;
}

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
