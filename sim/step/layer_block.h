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

// One op list per CP rank: empty for ranks without tokens, and of equal structure for all others.
using RankOps = std::span<const std::vector<Op>* const>;

// Appends the lists' ops, which take no time on a rank without tokens.
void append_ops(RankOps lists, OpBlock& block);

// What a mixer computes in one layer, by rank: its time and its FLOPs in all.
struct MixerKernel {
  OpName name = OpName::attention;
  std::span<const Picoseconds> time;
  std::vector<double> flops;
};

// A layer: `before`, then the context-parallel part, then `after`. `timeline` has the lists in it; what it
// holds beyond them are the mixers' kernels, one after another, and the host's stalls. `exchanges` are the
// timeline's synchronisations as ops. If `halves`, the layer has two nano-batches: `before` is of the one
// that comes first and `after` of the other one.
void append_layer(RankOps before, RankOps after, const LayerTimeline& timeline,
                  std::span<const MixerKernel> mixers, std::span<const Op> exchanges, bool halves,
                  OpBlock& block);

// The block of a forward layer next to a backward layer on the same ranks, with the ops in issue order
// (walk_layer_pair in sim/cost/layer_timeline.h). The exchanges of each run over what the other computes.
OpBlock pair_of_layers(const OpBlock& forward, const OpBlock& backward);

// The list without its weight gradients, so that communication which hid under one becomes exposed; and those
// gradients alone.
std::vector<Op> without_weight_gradients(const std::vector<Op>& ops);
std::vector<Op> only_weight_gradients(const std::vector<Op>& ops);

}  // namespace equipoise
