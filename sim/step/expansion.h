// From a plan's step to an op program: every kernel and collective of every rank, with its duration.
//
// A lane becomes blocks (lane_blocks.h), scheduled ops that wait for each other's results (op_inputs.h), and
// the runs of blocks of each (lane_runs.h). Both fidelities run the same durations; what differs is that here
// every op is a task of its own, so that single GPUs can be slow, jitter can hit single kernels, and times
// can be attributed to kernels.
//
// Overlap follows the frameworks: gradient buckets under the last backward, ring steps under attention,
// Skrull's all-gather under local documents, backward TP collectives under their GEMMs (forward ones on
// demand).
#pragma once

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/gradient_sync.h"
#include "sim/step/lane_blocks.h"
#include "sim/step/lane_runs.h"
#include "sim/step/lockstep.h"
#include "sim/step/op_program.h"
#include "sim/step/part_order.h"
#include "sim/step/step_options.h"

namespace equipoise {

class StepExpander {
 public:
  // fold_tp: the ranks of a TP group do the same and share one task. Without it every GPU has its own.
  StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options, bool fold_tp);

  // Throws UserError where the sharding rule or the schedule refuses the step.
  OpProgram expand(const Step& step);

  // Does the same lane by lane, for a caller who has costed the lanes already (StepSimulator::run): begin,
  // every lane that has micro-batches, finish. Buffers of the program are reused.
  void begin(const Step& step, OpProgram& program);
  void add_lane(const CostedLane& lane, OpProgram& program);
  void finish(OpProgram& program) const;

 private:
  void expand_lockstep_groups(const Step& step, OpProgram& program);
  void add_costed(const CostedLane& lane, OpProgram& program);
  void add_transfers(const MicroBatchCost& cost, OpLane& out);

  const LayerCosts& costs_;
  StepOptions options_;
  int tensor_;
  MicroBatchCoster coster_;
  PartOrders orders_;
  GradientSync gradients_;
  LaneBlocks blocks_;
  LaneRuns runs_;
  RangeUse use_;  // written and not read: predictions of a step are counted at stage fidelity
};

}  // namespace equipoise
