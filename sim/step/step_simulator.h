// One optimizer step at `stage` fidelity: every lane's pipeline, then gradients, optimizer and parameters.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/contended_run.h"
#include "sim/step/expansion.h"
#include "sim/step/lane_run.h"
#include "sim/step/lockstep.h"
#include "sim/step/op_run.h"
#include "sim/step/step_end.h"
#include "sim/step/step_result.h"
#include "sim/topology/fabric.h"

namespace equipoise {

// --- What sets a step's time: the chain of ops from the step's begin to its end in which each starts the moment
// the one before it ends.
//
// Walked backwards from the rank that ends last. A collective began when the last of them arrived,
// so the path goes on at that rank; a scheduled op began when its stage was free or when its input arrived.
// The result has no gaps: its segments add up to the makespan exactly. Ties take the rank's own earlier work
// before what it waited for, and the lowest rank among those that arrived last.
//
// Only the scheduled ops on the path are run again, O(scheduled ops on the path x their ops).

struct PathSegment {
  Picoseconds start = 0;
  Picoseconds end = 0;
  OpName name{};
  Stream stream = Stream::compute;
  std::int32_t lane = -1;         // -1: gradient buckets and what follows them
  std::int32_t stage = -1;        // a transfer: the receiver
  std::int32_t micro_batch = -1;  // in its lane
  std::int32_t rank = -1;         // in its lane's stage
  OpKind kind = OpKind::F;        // of the schedule op, where there is a lane
};

// From the step's begin to its end.
std::vector<PathSegment> critical_path(const OpProgram& program, const OpOptions& options,
                                       const OpResult& result);

// Where the time of a path goes. Entries add up to the makespan (documents: to what belongs to a
// micro-batch).
struct PathShares {
  std::array<Picoseconds, kStreams> by_stream{};
  std::vector<Picoseconds> by_stage;                     // gradient buckets and optimizer included
  std::vector<std::vector<Picoseconds>> by_micro_batch;  // [lane][micro-batch]
  Picoseconds after_pipeline = 0;                        // gradient buckets, optimizer, parameter gather
};
PathShares share_path(const OpProgram& program, const std::vector<PathSegment>& path);

// The path's time by document: attention by causal pairs, the rest by tokens, within each micro-batch.
struct DocumentShare {
  std::int64_t document = 0;
  double seconds = 0;
};
std::vector<DocumentShare> share_by_document(const Step& step,
                                             const std::vector<PathSegment>& path);  // longest first

// What the step would take if something were free.
struct Free {
  bool streams[kStreams] = {};    // all ops of these streams; pp: transfers, dp: buckets and parameter gather
  std::int32_t stage = -1;        // all ops of this stage
  std::int32_t lane = -1;         // with micro_batch
  std::int32_t micro_batch = -1;  // all ops of this micro-batch
};
Picoseconds makespan_without(const OpProgram& program, const OpOptions& options, const Free& free);

// --- The simulators.

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
  void account_member(const Step& step, LockstepMember& member, StepResult& result);
  void run_lockstep(LockstepGroup& lockstep, Picoseconds start, std::vector<LockstepMember>& members,
                    StepResult& result);
  // Fills micro_batches_.
  void cost_micro_batches(std::span<const MicroBatch> micro_batches, int context);
  // Makes costs as a lane needs them, in the memory of those that it no longer needs.
  class CostStream;
  const Schedule& schedule_for(const Lane& lane);
  // What a lane adds to the result: begin_lane, each micro-batch in order, then account_lane.
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
  std::vector<MicroBatchCost> micro_batches_;  // of the lane that runs, where all are kept
  std::size_t micro_batch_count_ = 0;
  // The costs of a lane that are made as it needs them.
  std::deque<MicroBatchCost> streamed_;
  std::vector<MicroBatchCost*> free_, in_use_;  // in_use_: by micro-batch
  Sharding sharding_;                           // whose buffers go from one micro-batch to the next
  std::vector<std::int32_t> group_sizes_;
  Schedule schedule_;
  std::vector<std::int32_t> schedule_groups_;  // what schedule_ was made for
  std::uint64_t schedule_number_ = 0;          // how many were made
  // Of the step that runs. Null: nobody.
  const std::function<void(const CostedLane&)>* on_lane_ = nullptr;
  int lockstep_groups_ = 0;
  LaneAccounts accounts_;
  std::vector<std::int64_t> rank_tokens_, gathered_tokens_;  // by micro-batch, of the fullest rank
  std::vector<int> fullest_rank_;                            // by micro-batch
  // Sums over the lanes of the running step so far.
  GpuSums sums_;
  double attention_max_ = 0, attention_mean_ = 0;  // seconds, over micro-batches
  double lane_seconds_ = 0;  // of the lane's micro-batches one after another: what no clock holds is refused
  GpuCompute gpu_compute_, gpu_attention_;
};

// One optimizer step at `op` fidelity: the plan's step expanded into every op of every rank and run.
//
// The step's work (StepWork) is that of layer resolution, which costs a hundredth. So is what ops take
// without waiting for each other: useful time and recompute by lane, latencies, communication that compute
// never hides. When things happen, compute per GPU and what waiting adds come from the ops.

struct OpStepOptions {
  bool fold_tp = true;
  Jitter jitter;              // its seed is advanced by one from step to step
  std::vector<double> speed;  // as OpOptions::speed; empty: all GPUs nominal
  int threads = 1;
  // Link contention: flows share the links of this network (null: every op has the network to itself). TP is
  // folded where that is exact: nominal GPUs without jitter, whose routes are alike.
  const Fabric* fabric = nullptr;
  std::function<void(double)> progress;  // with contention: gets the share of a step that is done
};

// One per thread, like StepSimulator.
class OpStepSimulator {
 public:
  OpStepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                  OpStepOptions op, const MemoryModel* memory = nullptr);

  // `number`: of the step in the run, so that jitter differs between steps. Throws as StepSimulator, and
  // EngineError.
  StepResult run(const Step& step, std::int64_t number = 0);

  // The latest step, with its contention.
  [[nodiscard]] const OpProgram& program() const { return program_; }
  [[nodiscard]] const OpResult& result() const { return contended_ ? contended_->result : result_; }
  [[nodiscard]] const OpOptions& op_options() const { return op_options_; }
  [[nodiscard]] std::vector<PathSegment> critical_path() const {
    return equipoise::critical_path(program_, op_options_, result());
  }
  [[nodiscard]] bool contention() const { return contended_.has_value(); }
  // What the same step takes where every op has the network to itself.
  [[nodiscard]] Picoseconds makespan_without_contention() const { return result_.makespan; }

 private:
  // The times of the step that ran. `stage`: those of the same step at stage fidelity.
  void run_with_contention(const Step& step);
  [[nodiscard]] StepTimes make_times(const Step& step, const StepTimes& stage, const MemoryPeak& peak);
  [[nodiscard]] std::vector<LaneResult> lanes_of(const Step& step,
                                                 const std::vector<LaneResult>& stage) const;
  void add_contention(const Step& step, StepTimes& times) const;
  void account_gpus(const Step& step);
  [[nodiscard]] TimeSpan span_of(std::size_t lane, int stage, std::size_t scheduled) const;
  [[nodiscard]] std::vector<StageOp> stage_ops(const Step& step) const;
  [[nodiscard]] GpuSpread attention_spread(const GpuSpread& nominal) const;
  [[nodiscard]] std::optional<TimeSpan> time_of_peak(const MemoryPeak& peak) const;

  const LayerCosts& costs_;
  const ShardRule& shard_;
  StepOptions options_;
  OpStepOptions op_;
  OpOptions op_options_;
  StepSimulator stage_;
  StepExpander expander_;
  std::optional<StepExpander> unfolded_;  // where folding TP would not be exact
  GpuCompute gpu_compute_;
  OpProgram program_;
  OpResult result_;  // without contention
  std::optional<ContendedTimes> contended_;
  ExposedTime added_;  // by contention, summed over GPUs
};

}  // namespace equipoise
