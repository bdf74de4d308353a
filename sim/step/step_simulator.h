// One optimizer step at `stage` fidelity: every lane's pipeline, then gradients, optimizer and parameters.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/gpu_compute.h"
#include "sim/step/gradient_sync.h"
#include "sim/step/lane_engine.h"
#include "sim/step/lockstep.h"
#include "sim/step/step_options.h"
#include "sim/step/step_result.h"

namespace equipoise {

// Keeps its buffers from step to step, so every thread needs its own. Steps are independent, so any number of
// threads gives the same results.
class StepSimulator {
 public:
  // Peaks are not modelled if `memory` is null.
  StepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                const MemoryModel* memory);
  StepSimulator(const StepSimulator&) = delete;  // free_ points into streamed_
  StepSimulator& operator=(const StepSimulator&) = delete;

  // Throws UserError if the sharding rule or the schedule refuses the plan's micro-batches. `on_lane`
  // receives every lane with micro-batches, the lanes of a lockstep group one after another. What it receives
  // is valid only during the call.
  StepResult run(const Step& step, const std::function<void(const CostedLane&)>& on_lane = {});
  // By GPU, attention seconds in the latest step, with TP folded.
  [[nodiscard]] const GpuCompute& gpu_attention() const { return gpu_attention_; }

 private:
  void run_lane(const Lane& lane, std::int32_t index, Picoseconds start, StepResult& result);
  LaneResult run_lane_at_once(const Lane& lane, std::int32_t index, Picoseconds start, StepResult& result);
  LaneResult run_lane_in_a_stream(const Lane& lane, std::int32_t index, Picoseconds start,
                                  StepResult& result);
  struct LockstepMember {
    LockstepLane plan;
    std::vector<MicroBatchCost> costs;
    LaneAccounts accounts;
    std::unique_ptr<LaneEngine> engine;
    LaneResult timing;
  };
  void run_in_lockstep(const Step& step, StepResult& result);
  void account_member(const Step& step, LockstepMember& member, StepResult& result);
  void run_lockstep(LockstepGroup& lockstep, Picoseconds start, std::vector<LockstepMember>& members,
                    StepResult& result);
  void cost_micro_batches(std::span<const MicroBatch> micro_batches, int context);
  // Makes costs as a lane needs them, in the memory of those that it no longer needs.
  class CostStream;
  const Schedule& schedule_for(const Lane& lane);
  // Add a lane to the result: begin_lane, then each micro-batch in order, then account_lane.
  void begin_lane();
  void account_micro_batch(const MicroBatch& micro_batch, const MicroBatchCost& cost, StepResult& result);
  void count_tokens(const MicroBatchCost& cost, StepResult& result);
  void account_lane(const Lane& lane, std::size_t index);
  void check_memory(std::span<const MicroBatch> micro_batches, int context, std::int32_t index,
                    const Schedule& schedule, StepResult& result);
  void finish(StepResult& result);

  const LayerCosts& costs_;
  StepOptions options_;
  const MemoryModel* memory_;
  MicroBatchCoster coster_;
  std::shared_ptr<const PartOrders> orders_;
  LaneEngine engine_;
  GradientSync gradients_;
  std::vector<MicroBatchCost> micro_batches_;  // of the running lane, if all are kept
  std::size_t micro_batch_count_ = 0;
  // The costs of a lane that are made as it needs them.
  std::deque<MicroBatchCost> streamed_;
  std::vector<MicroBatchCost*> free_, in_use_;  // in_use_: by micro-batch
  Sharding sharding_;                           // reused from one micro-batch to the next
  std::vector<std::int32_t> group_sizes_;
  Schedule schedule_;
  std::vector<std::int32_t> schedule_groups_;  // input for which schedule_ was made
  std::uint64_t schedule_number_ = 0;          // how many schedules were made
  // Called with the lanes of the running step; may be null.
  const std::function<void(const CostedLane&)>* on_lane_ = nullptr;
  int lockstep_groups_ = 0;
  LaneAccounts accounts_;
  std::vector<std::int64_t> rank_tokens_, gathered_tokens_;  // by micro-batch, on the fullest rank
  std::vector<int> fullest_rank_;                            // by micro-batch
  // Sums over the lanes of the running step so far.
  GpuSums sums_;
  double attention_max_ = 0, attention_mean_ = 0;  // seconds, over micro-batches
  double lane_seconds_ = 0;  // the lane's micro-batches in a row, which the clock must hold
  GpuCompute gpu_compute_, gpu_attention_;
};

// One optimizer step at `op` fidelity: the plan's step expanded into every op of every rank and run.

}  // namespace equipoise
