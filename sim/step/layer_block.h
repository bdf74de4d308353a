// The ops of a layer as a block: its local ops from the op lists of its ranks, its context-parallel part from
// the layer timeline that runs at layer resolution.
#pragma once

#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "sim/cost/layer_timeline.h"
#include "sim/step/op_program.h"
#include "sim/workload/ops.h"

namespace equipoise {

// One op list per CP rank; ranks without tokens have an empty one. All others are of equal structure.
using RankOps = std::span<const std::vector<Op>* const>;

// Appends the lists' ops; what a rank without tokens lacks takes no time.
void append_ops(RankOps lists, OpBlock& block);

// A layer: `before`, then the context-parallel part, then `after`. `timeline` has the lists in it; what it
// holds beyond them is attention (`attention` and `attention_flops` of each rank in all) and the host's stalls. `exchanges`: the timeline's synchronisations as ops. `halves`: of two nano-batches,
// `before` is of the one that comes first and `after` of the other one.
void append_layer(RankOps before, RankOps after, const LayerTimeline& timeline,
                  std::span<const Picoseconds> attention, std::span<const double> attention_flops,
                  std::span<const Op> exchanges, bool halves, OpBlock& block);

// A layer of a forward next to a layer of a backward, on the same ranks (walk_layer_pair in
// sim/cost/layer_timeline.h): their ops in the order in which they are issued, the exchanges of each over
// what the other computes.
OpBlock pair_of_layers(const OpBlock& forward, const OpBlock& backward);

// The list without weight gradients: a communication that hid under one of them becomes exposed. And those
// gradients alone.
std::vector<Op> without_weight_gradients(const std::vector<Op>& ops);
std::vector<Op> only_weight_gradients(const std::vector<Op>& ops);

}  // namespace equipoise
