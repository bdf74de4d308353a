// ZeRO-3 (FSDP) without a pipeline: every layer's parameters are gathered before its forward and its
// backward, and its gradients are reduced after the backward, over all data-parallel and context-parallel
// ranks.
//
// The gather of the next layer runs under the layer at work, so a layer takes the longer of the two, and the
// first gather and the last reduction are exposed. Each of these collectives waits for all replicas: lanes go
// in step, micro-batch by micro-batch, and the slowest lane of each sets its time.
#include <algorithm>

#include "sim/engine/stage/step_simulator.h"

namespace equipoise {
namespace {

Picoseconds one_layer(const LayerTimeline& layer, std::vector<Picoseconds>& clock) {
  clock.assign(static_cast<std::size_t>(layer.ranks), 0);
  advance(layer, 1, clock);
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace

// Runs a lane's micro-batches and raises sharded_, the time of each over all lanes, where this lane is
// slower.
void StepSimulator::run_fully_sharded(const Lane& lane, std::int32_t index, StepResult& result) {
  const Picoseconds gather = gradients_.layer_gather();
  const Picoseconds reduce = gradients_.layer_reduce();
  const int layers = costs_.model().layers;
  const std::size_t kind = costs_.model().moe ? 1 : 0;
  cost_lane(lane);
  // The schedule orders ops and bounds memory; without a pipeline its times are sums.
  const Schedule& schedule = schedule_for(lane);
  result.lanes.push_back(engine_.run(schedule, lane.micro_batches,
                                     std::span(micro_batches_).first(micro_batch_count_), options_, 0, index,
                                     accounts_, nullptr));
  if (sharded_.size() < micro_batch_count_) sharded_.resize(micro_batch_count_, 0);
  std::vector<Picoseconds> clock;
  for (std::size_t j = 0; j < micro_batch_count_; ++j) {
    const MicroBatch& micro_batch = lane.micro_batches[j];
    const MicroBatchCost& cost = micro_batches_[j];
    const int recomputed = engine_.recomputed_layers(0, micro_batch);
    const Picoseconds forward = one_layer(cost.forward[kind], clock);
    const Picoseconds backward = one_layer(recomputed > 0 ? cost.full[kind] : cost.backward[kind], clock);
    Picoseconds time =
        engine_.alone(OpKind::F, 0, micro_batch, cost) + engine_.alone(OpKind::B, 0, micro_batch, cost);
    time += 2 * gather + reduce;
    time += (layers - 1) * (std::max<Picoseconds>(0, gather - forward) +
                            std::max<Picoseconds>(0, gather + reduce - backward));
    sharded_[j] = std::max(sharded_[j], time);
  }
  account_lane(lane, result);
  if (memory_ != nullptr) check_memory(lane, index, schedule, result);
}

void StepSimulator::run_fully_sharded(const Step& step, StepResult& result) {
  for (int group = 0; group <= last_barrier_group(step); ++group) {
    sharded_.clear();
    for (std::size_t i = 0; i < step.lanes.size(); ++i)
      if (step.lanes[i].barrier_group == group && !step.lanes[i].micro_batches.empty())
        run_fully_sharded(step.lanes[i], static_cast<std::int32_t>(i), result);
    for (const Picoseconds time : sharded_) result.pipeline += time;
  }
  if (result.pipeline == 0) return;
  for (LaneResult& lane : result.lanes) {
    lane.makespan = result.pipeline;
    result.bubble_ratio += 1.0 - to_seconds(lane.useful) / to_seconds(result.pipeline);
  }
}

}  // namespace equipoise
