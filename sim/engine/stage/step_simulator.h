// One optimizer step at `stage` fidelity: every lane's pipeline, then gradients, optimizer and parameters.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/engine/stage/gpu_compute.h"
#include "sim/engine/stage/gradient_sync.h"
#include "sim/engine/stage/lane_engine.h"
#include "sim/engine/stage/lockstep.h"
#include "sim/engine/stage/step_options.h"
#include "sim/engine/stage/step_result.h"

namespace equipoise {

// A lane of the step at hand with what its micro-batches cost, the empty ones of its lockstep group among
// them; of a lane that meets others, what the entries of its arrivals do (LaneArrivals).
struct CostedLane {
  std::size_t lane = 0;  // in the step
  std::span<const MicroBatch> micro_batches;
  std::span<const MicroBatchCost> costs;
  const Schedule& schedule;
  const LockstepGroup* lockstep = nullptr;  // null if the lane meets no other
  int group = -1;                           // which lockstep group of the step that is
};

// One per thread: keeps its buffers from step to step. Steps are independent, so any number of threads gives
// the same results.
class StepSimulator {
 public:
  // `memory` may be null: peaks are not modelled then.
  StepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                const MemoryModel* memory);
  StepSimulator(const StepSimulator&) = delete;  // free_ points into streamed_
  StepSimulator& operator=(const StepSimulator&) = delete;

  // Throws UserError where the sharding rule or the schedule refuses the plan's micro-batches. `on_lane` gets
  // every lane with micro-batches, those of a lockstep group one after another; what it gets is gone
  // afterwards.
  StepResult run(const Step& step, const std::function<void(const CostedLane&)>& on_lane = {});
  // Of the latest step: attention seconds of every GPU, TP folded.
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
  void run_lockstep(LockstepGroup& lockstep, Picoseconds start, std::vector<LockstepMember>& members,
                    StepResult& result);
  static int last_barrier_group(const Step& step);
  // Fills micro_batches_.
  void cost_micro_batches(std::span<const MicroBatch> micro_batches, int context);
  // Makes costs as a lane needs them, in the memory of those that it no longer needs.
  class CostStream;
  const Schedule& schedule_for(const Lane& lane);
  // What a lane adds to the result: begin_lane, each micro-batch in order, then account_lane.
  void begin_lane();
  void account_micro_batch(const MicroBatch& micro_batch, const MicroBatchCost& cost, StepResult& result);
  void count_tokens(const MicroBatchCost& cost, StepResult& result);
  void account_lane(const Lane& lane, std::size_t index, StepResult& result);
  void check_memory(std::span<const MicroBatch> micro_batches, int context, std::int32_t index,
                    const Schedule& schedule, StepResult& result);
  void finish(StepResult& result);

  const LayerCosts& costs_;
  StepOptions options_;
  const MemoryModel* memory_;
  MicroBatchCoster coster_;
  std::shared_ptr<const StageWalks> walks_;
  LaneEngine engine_;
  GradientSync gradients_;
  std::vector<MicroBatchCost> micro_batches_;  // of the lane at hand, where all are kept
  std::size_t micro_batch_count_ = 0;
  // Of a lane whose costs are not kept.
  std::deque<MicroBatchCost> streamed_;
  std::vector<MicroBatchCost*> free_, in_use_;  // in_use_: by micro-batch
  Sharding sharding_;                           // whose buffers go from one micro-batch to the next
  std::vector<std::int32_t> group_sizes_;
  Schedule schedule_;
  std::vector<std::int32_t> schedule_groups_;  // what schedule_ was made for
  std::uint64_t schedule_number_ = 0;          // how many were made
  // Of the step at hand. Null: nobody.
  const std::function<void(const CostedLane&)>* on_lane_ = nullptr;
  int lockstep_groups_ = 0;
  LaneAccounts accounts_;
  std::vector<std::int64_t> rank_tokens_, gathered_tokens_;  // by micro-batch, of the fullest rank
  std::vector<int> fullest_rank_;                            // by micro-batch
  // Sums over the lanes of the step at hand, in seconds of all its ranks; begun anew with every step.
  struct Sums {
    double attention_max = 0, attention_mean = 0;  // over micro-batches
    double recompute = 0, recompute_exposed = 0;
    std::array<double, kStreams> exposed{};
  };
  Sums sums_;
  GpuCompute gpu_compute_, gpu_attention_;
};

}  // namespace equipoise
