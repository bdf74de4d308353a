// How unevenly the router loads the ranks that hold the experts, drawn for a micro-batch.
//
// A router that is not forced to balance prefers some experts, and which ones goes with the text: a
// document's tokens prefer expert e by a weight that is gamma distributed with mean 1 and coefficient of
// variation `skew`, drawn from a seed and the document's number. A rank's load is the sum over its experts
// and over the documents of a micro-batch by their tokens, so that what is packed together evens out; the
// exchange and the grouped products wait for the rank with the most. Weights of one rank's experts add up to
// a gamma of so many times the shape: one draw for each document and rank.
//
// The micro-batches that meet in an exchange are drawn together (sim/step/lockstep.h). Who
// knows only one takes the others to be as long and as many documents, whose preferences add up as those of
// so many times the experts. All layers of a micro-batch are loaded alike.
//
// Example, 2 ranks, one document, loads drawn 1.3 and 0.9: the busiest has 1.3 / 1.1 of the mean.
#pragma once

#include <cstdint>
#include <span>

#include "policies/plan.h"

namespace equipoise {

struct RouterSkew {
  double skew = 0;  // standard deviation over mean of an expert's share of a document's tokens; 0: all equal
  std::uint64_t seed = 0;
};

// Busiest rank over the mean, at least 1, of micro-batches that meet. O(documents x ranks) draws.
// `experts_of_rank`: on each of `ranks`, times the micro-batches that each of these stands for.
double expert_load(std::span<const MicroBatch* const> meeting, RouterSkew skew, int ranks,
                   int experts_of_rank);
inline double expert_load(const MicroBatch& micro_batch, RouterSkew skew, int ranks, int experts_of_rank) {
  const MicroBatch* const alone = &micro_batch;
  return expert_load({&alone, 1}, skew, ranks, experts_of_rank);
}

}  // namespace equipoise
