// What the lanes of a lockstep group cost, whose experts work for each other's tokens.
//
// The lanes run op number i of a stage together (lockstep.h), so what arrives at a rank with an op's
// exchanges is the mean of what its expert-parallel group sends: the tokens of the micro-batches that the
// group's lanes have in their op number i, CP ranks and replicas alike. A lane that has none there works for
// the others; a lane without any micro-batch does, too, beside the step. In a layer that only some of the
// lanes recompute the tokens of those are exchanged once more, and all work for them.
//
// So a micro-batch has a price for each meeting that it takes part in: one, as long as lanes run their
// micro-batches in the same order.
//
// Example, 2 lanes on 2 ranks, micro-batches of 1,000 and 3,000 tokens beside one of 5,000: with the first op
// 3,000 arrive at each rank, with the second 1,500, which leaves the shorter lane half of the longer one's
// experts' work.
#pragma once

#include <span>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/engine/stage/lockstep.h"
#include "sim/engine/stage/stage_walk.h"

namespace equipoise {

// Fills LockstepLane::arrivals of all lanes that share experts. `tokens`: by lane, [micro-batch x CP rank].
// O(ops x lanes).
void meet_at_experts(LockstepGroup& lockstep, std::span<const std::vector<std::int64_t>> tokens,
                     const LayerCosts& costs, const StageWalks& walks);

// That, and the costs of all its entries, by lane. Throws UserError as the sharding rule does.
std::vector<std::vector<MicroBatchCost>> cost_lockstep_group(LockstepGroup& lockstep,
                                                             MicroBatchCoster& coster,
                                                             const LayerCosts& costs,
                                                             const StageWalks& walks);

}  // namespace equipoise
