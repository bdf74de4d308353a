#include "sim/validation/compose.h"

#include <algorithm>

#include "policies/base/index.h"
#include "sim/step/op_run.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {
namespace {

struct Mean {
  double sum = 0;
  int count = 0;
};

bool is_kernel(const OpStep& step) {
  return step.stream == Stream::compute && step.sync == SyncGroup::none;
}

// The program with measured kernels: of each op of a block, the mean over all that ran it (layers, stages, TP
// ranks).
OpProgram with_measured(const execution::ExecutableStep& step, const RankGrid& grid,
                        const std::vector<execution::StepRecord>& ranks) {
  OpProgram program = step.program;
  std::vector<std::vector<std::vector<Mean>>> means(
      program.lanes.size());  // [lane][block][step * context + r]
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (const OpBlock& block : program.lanes[l].blocks) means[l].emplace_back(block.durations.size());
  std::vector<std::vector<Mean>> ends;
  for (const StageEnd& end : program.ends) ends.emplace_back(end.steps.size());

  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankCoordinates place = grid.coordinates(static_cast<int>(r));
    const std::vector<int> replicas = grid.data_context_group(static_cast<int>(r));
    const auto replica =
        static_cast<int>(std::find(replicas.begin(), replicas.end(), static_cast<int>(r)) - replicas.begin());
    for (const execution::RecordedOp& op : ranks[r].ops) {
      const double seconds = 1e-9 * static_cast<double>(op.end_ns - op.begin_ns);
      Mean* mean = nullptr;
      if (op.lane < 0) {
        mean = &ends[at(place.pipeline)][at(op.step)];
      } else if (op.run >= 0) {
        const OpLane& lane = program.lanes[at(op.lane)];
        const ScheduledOp& scheduled = lane.stages[at(place.pipeline)][at(op.scheduled)];
        const BlockRun& run = lane.runs[scheduled.first_run + static_cast<std::uint32_t>(op.run)];
        mean = &means[at(op.lane)][run.block][at(op.step * lane.context + replica - lane.first_replica)];
      }
      if (mean == nullptr) continue;
      mean->sum += seconds;
      ++mean->count;
    }
  }
  const auto put = [](const OpStep& op, const Mean& mean, Picoseconds& duration) {
    if (is_kernel(op) && mean.count > 0) duration = to_picoseconds(mean.sum / mean.count);
  };
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (std::size_t b = 0; b < program.lanes[l].blocks.size(); ++b) {
      OpBlock& block = program.lanes[l].blocks[b];
      const auto context = at(program.lanes[l].context);
      for (std::size_t i = 0; i < block.durations.size(); ++i)
        put(block.steps[i / context], means[l][b][i], block.durations[i]);
    }
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (std::size_t i = 0; i < program.ends[s].steps.size(); ++i)
      put(program.ends[s].steps[i], ends[s][i], program.ends[s].durations[i]);
  return program;
}

}  // namespace

void compose_steps(const RealRow& row, RealResult& result) {
  for (TimedStep& timed : result.timed)
    timed.seconds = to_seconds(
        run(with_measured(row.steps[at(timed.step)], row.ready.models->grid, timed.ranks)).makespan);
}

}  // namespace equipoise
