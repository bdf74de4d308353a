// Stages that share out their attention (Layout::evens_out_stages): the ops that run at one time, and what
// they cost.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/step/lockstep.h"

namespace equipoise {

// The ops that the stages of a lane run at one time where they are in step (ScheduleInput::in_step): forward
// i of stage s and forward i + 1 of stage s - 1, and so on; or backwards.
struct TickOp {
  std::size_t stage = 0, position = 0;
};
using Tick = std::vector<TickOp>;  // by stage
std::vector<Tick> ticks_of(const Schedule& schedule);

// Where the stages of a lane share out their attention, tick by tick: adds the costs of its ops to those of
// its micro-batches, and says in `lane.arrivals` which is whose (stage_ticks.cpp).
void cost_ticks(LockstepLane& lane, MicroBatchCoster& coster, const LayerCosts& model,
                const PartOrders& orders, std::vector<MicroBatchCost>& costs);

}  // namespace equipoise
