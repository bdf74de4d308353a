// The ops of a lane's schedule: what each of them works on, and which cost entry is its own.
#pragma once

#include <span>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/step/lockstep.h"
#include "sim/step/op_time.h"
#include "sim/step/part_order.h"

namespace equipoise {

struct LaneOps {
  const Schedule& schedule;
  std::span<const MicroBatch> micro_batches;
  const LaneArrivals* arrivals;  // whose entries the costs are; null if they are the micro-batches'
  const PartOrders& orders;
  bool splits_backward = false;

  [[nodiscard]] int virtual_stage(const ScheduleOp& op, int stage) const {
    return op.virtual_stage * schedule.stages + stage;
  }
  [[nodiscard]] std::size_t entry_of(int stage, std::size_t position) const {
    const ScheduleOp& op = schedule.ops[at(stage)][position];
    return arrivals == nullptr ? at(op.micro_batch) : arrivals->entry_of(op, stage, position);
  }
  [[nodiscard]] int recomputed(const ScheduleOp& op, int stage) const {
    return orders.recomputed_layers(virtual_stage(op, stage), micro_batches[at(op.micro_batch)]);
  }
  [[nodiscard]] StageWork work_of(const ScheduleOp& op, int stage) const {
    const int v = virtual_stage(op, stage);
    if (op.kind != OpKind::B) return {op.kind, false, v, 0};
    return {op.kind, splits_backward && !op.whole, v, recomputed(op, stage)};
  }
  // The pair whose first op is at `position` of the stage.
  [[nodiscard]] PairWork pair_of(int stage, std::size_t position,
                                 std::span<const MicroBatchCost* const> costs) const {
    const ScheduleOp& first = schedule.ops[at(stage)][position];
    const ScheduleOp& second = schedule.ops[at(stage)][position + 1];
    return {virtual_stage(first, stage), virtual_stage(second, stage), recomputed(second, stage),
            *costs[entry_of(stage, position)], *costs[entry_of(stage, position + 1)]};
  }
};

}  // namespace equipoise
