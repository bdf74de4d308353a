// Which blocks the ops of a lane's schedule run, and how often.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/step/gradient_sync.h"
#include "sim/step/lane_blocks.h"
#include "sim/step/lane_ops.h"
#include "sim/step/lockstep.h"
#include "sim/step/op_program.h"
#include "sim/step/part_order.h"

namespace equipoise {

class LaneRuns {
 public:
  LaneRuns(const LayerCosts& costs, const PartOrders& orders, const GradientSync& gradients,
           LaneBlocks& blocks);

  // Gives the lane's scheduled ops (op_inputs.h) their runs of its blocks. `arrivals`: null if the lane waits
  // for no other.
  void add(const CostedLane& lane, const LaneArrivals* arrivals, OpLane& out);

 private:
  struct Runs;
  struct ForwardRuns;
  struct BackwardRuns;
  struct WeightRuns;
  struct PairRuns;
  // Adds the runs of one op of the schedule, or of a pair. `bucket` is the first bucket that it fills.
  void add_runs(const LaneOps& ops, const LockstepGroup* lockstep, int stage, std::size_t position,
                std::int32_t bucket, bool reducing, OpLane& out);
  void push_shared(OpLane& out, std::uint32_t shared) const {
    out.runs.push_back({blocks_.shared_block(shared)});
  }

  const PartOrders& orders_;
  const GradientSync& gradients_;
  LaneBlocks& blocks_;
  std::vector<std::int32_t> first_layer_, first_of_backward_;  // by virtual stage: layer numbers in the model
};

}  // namespace equipoise
