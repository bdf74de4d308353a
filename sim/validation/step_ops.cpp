#include "sim/validation/step_ops.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;
using execution::RecordedOp;
using execution::StepRecord;

}  // namespace

RankPlace place_of(const RankGrid& grid, int rank) {
  const RankCoordinates coordinates = grid.coordinates(rank);
  const std::vector<int> replicas = grid.data_context_group(rank);
  const auto found = std::find(replicas.begin(), replicas.end(), rank);
  return {coordinates.pipeline, static_cast<int>(found - replicas.begin()), coordinates.tensor};
}

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
    const RankPlace place = place_of(grid, static_cast<int>(r));
    for (const RecordedOp& recorded : ranks[r].ops) {
      ops_.push_back(describe(recorded, static_cast<int>(r), place));
      if (recorded.lane >= 0)  // the last of a scheduled op stays
        ends_[{place.stage, place.replica, place.tensor, recorded.lane, recorded.scheduled}] =
            recorded.end_ns;
    }
  }
  for (const StepOp& op : ops_) {
    if (op.sync == SyncGroup::none && !op.at_end) continue;
    std::int64_t& latest = arrivals_[meeting_of(op)];
    latest = std::max(latest, op.recorded->begin_ns);
  }
}

double StepOps::measured_seconds(const StepOp& op) const {
  std::int64_t begin = op.recorded->begin_ns;
  if (const auto arrived = arrivals_.find(meeting_of(op)); arrived != arrivals_.end())
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

// Equal for the members of one collective.
StepOps::Meeting StepOps::meeting_of(const StepOp& op) const {
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

// When the scheduled op that made the input had ended on the rank that sends it.
std::int64_t StepOps::sent_at(const StepOp& op) const {
  const OpLane& lane = step_.program.lanes[at(op.recorded->lane)];
  const ScheduledOp& scheduled = lane.stages[at(op.place.stage)][at(op.recorded->scheduled)];
  const auto found = ends_.find(
      {scheduled.input_stage, op.place.replica, op.place.tensor, op.recorded->lane, scheduled.input_op});
  return found == ends_.end() ? 0 : found->second;
}

}  // namespace equipoise
