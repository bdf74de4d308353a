// What the experts of a mixture-of-experts layer get: how many tokens, how unevenly, and how they travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policies/plan.h"
#include "profiler/profile/cost_models.h"
#include "sim/framework/framework.h"
#include "sim/workload/model.h"
#include "sim/workload/ops.h"

namespace equipoise {

// What arrives at the experts of a rank.
//
// The ranks of an expert-parallel group send the tokens that they hold, each to `active` experts; the experts
// lie evenly on the ranks, so that of all copies every rank gets as many, whatever it sent itself. Packs are
// unequal: a rank whose micro-batch is short, or that has none, works for the others.
//
// Example, 2 ranks, 1,000 and 3,000 tokens, 8 experts a token: each sends 8 copies of its own and gets
// 16,000.
struct ExpertArrivals {
  // The mean of the group's ranks, in tokens that were sent, each of which stands for `active` copies:
  // gathered over the expert's tensor-parallel ranks, and on each of these.
  double tokens = 0, rows = 0;
  double load = 1;  // of the busiest rank over the mean, beside framework.expert_imbalance
  friend bool operator==(const ExpertArrivals&, const ExpertArrivals&) = default;
};

// The slot, of `slots`, in which a memo keeps the costs of a rank that holds `tokens`. Where as many tokens
// arrive as the rank sends, `tokens` alone decides.
inline std::size_t memo_slot(std::int64_t tokens, const ExpertArrivals& arriving, std::size_t slots) {
  const std::int64_t from_others = static_cast<std::int64_t>(arriving.tokens) - tokens;
  return (static_cast<std::size_t>(tokens) + 31 * static_cast<std::size_t>(from_others)) % slots;
}

// How unevenly the router loads the ranks that hold the experts, drawn for a micro-batch.
//
// A router that is not forced to balance prefers some experts, and which ones goes with the text: a
// document's tokens prefer expert e by a weight that is gamma distributed with mean 1 and coefficient of
// variation `skew`, drawn from a seed and the document's number. A rank's load is the sum over its experts
// and over the documents of a micro-batch by their tokens, so that what is packed together evens out; the
// exchange and the grouped products wait for the rank with the most. Weights of one rank's experts add up to
// a gamma of so many times the shape: one draw for each document and rank.
//
// The micro-batches of one exchange are drawn together. A caller that knows only one of them takes the others
// to be as long and to hold as many documents, whose preferences add up as those of so many times the
// experts. All layers of a micro-batch are loaded alike.
//
// Example, 2 ranks, one document, loads drawn 1.3 and 0.9: the busiest has 1.3 / 1.1 of the mean.
struct RouterSkew {
  double skew = 0;  // standard deviation over mean of an expert's share of a document's tokens; 0: all equal
  std::uint64_t seed = 0;
};

// The load of the busiest rank over the mean, at least 1, for the micro-batches of one exchange.
// O(documents x ranks) draws. `experts_of_rank`: experts on each of `ranks`, times the micro-batches that
// each of `together` stands for.
double expert_load(std::span<const MicroBatch* const> together, RouterSkew skew, int ranks,
                   int experts_of_rank);
inline double expert_load(const MicroBatch& micro_batch, RouterSkew skew, int ranks, int experts_of_rank) {
  const MicroBatch* const alone = &micro_batch;
  return expert_load({&alone, 1}, skew, ranks, experts_of_rank);
}

// What is published of routers that nobody forces: the standard deviation over the mean of an expert's share of all
// tokens, which stays from micro-batch to micro-batch. Each layer prefers experts of its own.
//   unbalanced      0.40 with 8 experts, 0.73 with 16: tokens that ranks with one and two experts got, of Mixtral-like
//                   models trained without a balancing loss (Fizzmy/LAER-MoE-AE at 72db5b79); the root mean square
//   auxiliary-loss  the busiest of 64 experts has 1.52 to 1.72 times the mean (arXiv 2408.15664, Table 2, 3B and 1B)
//   loss-free       1.04 times the mean (the same)
// The last two as gammas whose largest of 64 is that on average. 0 for `stated`.
double router_spread(ExpertRouter router);

// The load of the busiest of `ranks` ranks over the mean, a layer's on average, where experts' shares are gamma
// distributed with that spread, `experts_of_rank` on each. 1 where the spread is 0.
double router_load(double spread, std::uint64_t seed, int ranks, int experts_of_rank);

// How tokens get to their experts on other ranks and back, in a mixture-of-experts layer.
//
// Each pass of a layer has two exchanges. The first takes tokens to their experts: forward the dispatch,
// backward the gradients of what came back (the transpose of the combine, which is a dispatch). The second
// brings back one vector for each copy, to be summed where the token lives: forward the combine, backward the
// transpose of the dispatch. Both move the same copies; what goes to the experts may be in FP8
// (`dispatch_bytes`), what is summed stays in the activations' type (DeepSeek-V3, arXiv 2412.19437 section
// 3.3.2).
//
// What goes over which link is the expectation under uniform routing (profiler/profile/collective.h):
// with n ranks of an expert-parallel group on N nodes, k experts a token and T tokens a rank,
//   alltoall  every copy is sent: T k / n of them to each rank, 1 / n of all stay at home
//   deepep    a token goes over the network once for each other node that has experts of it, and over NVLink
//             once for each rank there. Its nodes are at most `expert_nodes`, its own included where it is
//             one of them; where that is 0, what the model's router leaves by its groups of experts
// The rank that sends or gets the most sets the time. What arrives is alike on all ranks but for the load of
// the busiest over the mean (ExpertArrivals).
enum class ExchangeWay { to_experts, back };

// Who exchanges, and how it is priced.
struct ExpertGroup {
  const ModelShape& model;
  const FrameworkOptions& framework;
  GroupShape ranks;          // the expert-parallel ranks
  double element_bytes = 2;  // of an activation
  const CollectiveModel& collectives;
};

// The exchange of `tokens` tokens of a rank, times `load`: what it sends, or gets, whichever is more. Its
// bytes are the buffer of an all-to-all: each copy once, those that stay included. DeepEP's are those of an
// all-to-all that would put as much on the slower kind of link (the network, if there is one), for contention
// and traces. Throws UserError where the profile cannot price it.
Op expert_exchange(const ExpertGroup& group, double tokens, double load, ExchangeWay way, RangeUse& use);

}  // namespace equipoise
