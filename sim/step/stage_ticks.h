// For stages that share their attention (Layout::evens_out_stages): simultaneous ops and their cost.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/step/lockstep.h"

namespace equipoise {

// An op in the set that the stages of a lane run at one time while they are in step (ScheduleInput::in_step).
// Forward i of stage s runs with forward i + 1 of stage s - 1, and so on; backwards run likewise.
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
