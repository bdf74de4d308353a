// From a plan's step to an op program: every kernel and collective of every rank, with its duration.
//
// A layer of a micro-batch becomes one block. Its local ops come from the layer's op inventory (LayerCosts),
// its context-parallel skeleton from the layer timeline that the stage engine uses: synchronisations, what
// runs beside them, attention between them. Both fidelities thus run the same durations; what differs is that
// here every op is a task of its own, so that single GPUs can be slow, jitter can strike single kernels,
// and times can be attributed to kernels.
//
// Overlap follows the frameworks: gradient buckets under the last backward, ring steps under attention,
// Skrull's all-gather under local documents, backward TP collectives under their GEMMs (forward ones on
// demand).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/engine/op/layer_block.h"
#include "sim/engine/op/op_program.h"
#include "sim/engine/stage/gradient_sync.h"
#include "sim/engine/stage/lockstep.h"
#include "sim/engine/stage/stage_walk.h"
#include "sim/engine/stage/step_options.h"

namespace equipoise {

class StepExpander {
 public:
  // fold_tp: one task stands for the ranks of a TP group, which do the same; off: every GPU has its own.
  StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options, bool fold_tp);

  // Throws UserError where the sharding rule or the schedule refuses the step.
  OpProgram expand(const Step& step);

 private:
  // One layer's ops on a rank that holds a number of tokens.
  struct LayerOps {
    std::int64_t tokens = -1;
    double load = 1;
    std::vector<Op> forward_before, forward_after, backward_before, backward_after;
  };
  const LayerOps& layer_ops(LayerKind kind, std::int64_t tokens, double load);
  void expand_lockstep_groups(const Step& step, OpProgram& program);
  // `lockstep`: null if the lane meets no other.
  void expand_lane(std::span<const MicroBatch> micro_batches, int context, const Schedule& schedule,
                   const LockstepGroup* lockstep, OpLane& out);
  void add_blocks(const MicroBatch& micro_batch, const MicroBatchCost& cost, OpLane& out);
  void add_layer_blocks(LayerKind kind, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                        OpLane& out, std::size_t first);
  [[nodiscard]] double attention_flops(const MicroBatchCost& cost, std::int64_t window) const;
  std::vector<SyncOp> syncs_of(const MicroBatch& micro_batch, const MicroBatchCost& cost, std::int64_t window,
                               bool backward);
  void add_shared_blocks(OpLane& out);
  void add_scheduled_ops(std::span<const MicroBatch> micro_batches, const Schedule& schedule,
                         const LockstepGroup* lockstep, OpLane& out);
  struct Runs;
  struct ForwardRuns;
  struct BackwardRuns;
  struct WeightRuns;
  struct PairRuns;
  // Whether a gradient op's reductions run in the background: it has no buckets to fill.
  [[nodiscard]] bool reduces_at_once(std::int32_t bucket) const {
    return gradients_.reduces_each_micro_batch() && bucket == kNoBucket;
  }
  // A lane at hand.
  struct Expanding {
    std::span<const MicroBatch> micro_batches;
    const Schedule& schedule;
    const LockstepGroup* lockstep;  // null if the lane meets no other
    bool split;                     // the schedule splits backwards
    OpLane& out;
  };
  // The runs of one op of the schedule, or of a pair. `bucket`: the first that it fills.
  void add_runs(const Expanding& lane, int stage, std::size_t position, std::int32_t bucket, bool reducing);
  void push_shared(OpLane& out, std::uint32_t shared) const { out.runs.push_back({shared_block_ + shared}); }

  const LayerCosts& costs_;
  StepOptions options_;
  int tensor_;
  MicroBatchCoster coster_;
  StageWalks walks_;
  GradientSync gradients_;
  std::uint32_t shared_block_ = 0;  // of the lane at hand: first of those that all micro-batches share
  std::vector<std::int32_t> first_bucket_;  // by virtual stage: of its pipeline stage's buckets
  std::vector<std::int32_t> first_layer_;   // by virtual stage: of the model's
  std::array<std::vector<LayerOps>, kLayerKinds> memo_;
  OpList before_, after_;
  RangeUse use_;  // of no meaning: the step's own predictions are counted at stage fidelity
};

}  // namespace equipoise
