// What the lanes of a lockstep group cost, whose experts work for each other's tokens.
//
// The lanes run op number i of a stage together (lockstep.h). So a rank receives with an op's exchanges the
// mean of what its expert-parallel group sends: the tokens of the micro-batches in op number i of the group's
// lanes, CP ranks and replicas alike. A lane that has none there works for the others; a lane without any
// micro-batch does, too, outside of the step. In a layer that only some of the lanes recompute the tokens of
// those are exchanged once more, and all work for them.
//
// So a micro-batch has a price for each set of micro-batches that it runs with: one, as long as lanes run
// theirs in the same order.
//
// Example, 2 lanes on 2 ranks, micro-batches of 1,000 and 3,000 tokens next to one of 5,000: with the first
// op 3,000 arrive at each rank, with the second 1,500, which leaves the shorter lane half of the longer one's
// experts' work.
#pragma once

#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/step/lockstep.h"

namespace equipoise {

// Finds the arrivals of the lanes, and the costs of all their entries, by lane. Throws UserError as the
// sharding rule does.
std::vector<std::vector<MicroBatchCost>> cost_lockstep_group(LockstepGroup& lockstep,
                                                             MicroBatchCoster& coster,
                                                             const LayerCosts& costs,
                                                             const PartOrders& orders);

}  // namespace equipoise
