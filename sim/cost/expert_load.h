// How unevenly a router loads the ranks that hold the experts.
#pragma once

#include <cstdint>
#include <span>

#include "policies/plan.h"
#include "sim/framework/framework_options.h"

namespace equipoise {

// How unevenly the router loads the ranks that hold the experts, drawn for a micro-batch.
//
// A router that is not forced to balance prefers some experts, and which ones depends on the text. A
// document's tokens prefer expert e by a weight that is gamma distributed with mean 1 and coefficient of
// variation `skew`. It is drawn from a seed and the document's number. A rank's load is the sum over its
// experts and over the documents of a micro-batch by their tokens, so that what is packed together evens out;
// the exchange and the grouped products wait for the rank with the most. Weights of one rank's experts add up
// to a gamma of so many times the shape: one draw for each document and rank.
//
// The micro-batches of one exchange are drawn together. A caller that knows only one of them takes the others
// to be as long and to hold as many documents, whose preferences add up as those of so many times the
// experts. All layers of a micro-batch are loaded alike.
//
// Example, 2 ranks, one document, loads drawn 1.3 and 0.9: the busiest has 1.3 / 1.1 of the mean.
struct RouterSkew {
  double skew = 0;  // standard deviation over mean of an expert's share of a document; 0: all equal
  std::uint64_t seed = 0;
};

// The load of the busiest rank over the mean, at least 1, for the micro-batches of one exchange. O(documents
// x ranks) draws. `experts_of_rank` is the number of experts on each of `ranks`, times the micro-batches that
// each of `together` represents.
double expert_load(std::span<const MicroBatch* const> together, RouterSkew skew, int ranks,
                   int experts_of_rank);
inline double expert_load(const MicroBatch& micro_batch, RouterSkew skew, int ranks, int experts_of_rank) {
  const MicroBatch* const alone = &micro_batch;
  return expert_load({&alone, 1}, skew, ranks, experts_of_rank);
}

// What is published of routers that nobody forces: the standard deviation over the mean of an expert's share
// of all tokens, which stays from micro-batch to micro-batch. Each layer prefers experts of its own.
//   unbalanced      0.40 with 8 experts, 0.73 with 16: the root mean square, from the tokens that ranks with
//                   one and two experts got of Mixtral-like models trained without a balancing loss
//                   (Fizzmy/LAER-MoE-AE at 72db5b79)
//   auxiliary-loss  the busiest of 64 experts has 1.52 to 1.72 times the mean (arXiv 2408.15664, Table 2, 3B
//                   and 1B)
//   loss-free       1.04 times the mean (the same)
// The last two as gammas whose largest of 64 is that on average. 0 for `stated`.
double router_spread(ExpertRouter router);

// The load of the busiest of `ranks` ranks over the mean, averaged over layers. Experts' shares are gamma
// distributed with that spread, with `experts_of_rank` on each rank. It is 1 if the spread is 0.
double router_load(double spread, std::uint64_t seed, int ranks, int experts_of_rank);

}  // namespace equipoise
