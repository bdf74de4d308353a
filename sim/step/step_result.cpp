#include "sim/step/step_result.h"

namespace equipoise {

LaneLosses lane_losses(std::span<const LaneResult> lanes, Picoseconds pipeline, const Layout& layout) {
  LaneLosses losses;
  double idle = 0, ran = 0;  // summed over ranks
  for (const LaneResult& lane : lanes) {
    const Picoseconds all = layout.pipeline * lane.makespan;
    ran += to_seconds(all) * lane.context;
    idle += to_seconds(std::max<Picoseconds>(0, all - lane.useful - lane.recompute)) * lane.context;
    losses.bubble_ratio += lane.bubble(layout.pipeline) / static_cast<double>(lanes.size());
  }
  const double gpus = static_cast<double>(std::int64_t{layout.pipeline} * layout.data * layout.context);
  losses.idle_seconds = idle / gpus;
  losses.lanes_wait_seconds = std::max(0.0, to_seconds(pipeline) - ran / gpus);
  return losses;
}

void GpuSums::add(const OpSums& lane, int ranks) {
  for (std::size_t s = 0; s < kStreams; ++s)
    exposed[s] += to_seconds(lane.exposed[s]) * static_cast<double>(ranks);
  recompute += to_seconds(lane.recompute) * static_cast<double>(ranks);
  recompute_exposed += to_seconds(lane.recompute_exposed) * static_cast<double>(ranks);
}

void GpuSums::report_means(const Layout& layout, StepTimes& times) const {
  const auto gpus = static_cast<double>(std::int64_t{layout.pipeline} * layout.data * layout.context);
  times.recompute_seconds = recompute / gpus;
  times.recompute_exposed_seconds = recompute_exposed / gpus;
  for (std::size_t s = 0; s < kStreams; ++s) times.exposed_seconds[s] = exposed[s] / gpus;
}

}  // namespace equipoise
