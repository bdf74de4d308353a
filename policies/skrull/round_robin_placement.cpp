// Round-robin placement (Skrull Algorithm 4, the ablation of DACP without cost balancing): documents in the
// micro-batch's order, each whole to the rank with the most room if it fits there; else distributed if the
// rank with the least room has s/N; else the oldest local document of that rank is rolled back and the
// document is tried anew. Every rank is charged for what is rolled back, as in dacp.cpp.
//
// The micro-batches of gds are ascending lists, and there this rule and DACP place alike: both deal documents
// to the ranks in turn, so the rank with the most room is the one with the least load, and a rank's oldest
// document is its shortest. `placement_order = arrival` takes the documents of each micro-batch as they came
// instead; then long and short ones alternate and the missing cost balancing shows.
// Cost: O(documents * ranks).
#include "policies/skrull/placement.h"

namespace equipoise::skrull {

Placement place_round_robin(const PlacementProblem& problem) {
  Buckets buckets(problem);
  for (std::size_t i = 0; i < problem.tokens.size();) {
    const std::size_t roomy = buckets.most_room();
    if (buckets.fits_local(roomy, i)) {
      buckets.place_local(roomy, i);
    } else if (buckets.fits_distributed(i) || !problem.rollback) {
      buckets.distribute(i);
    } else {
      if (!buckets.roll_back()) return buckets.finish(true);
      continue;
    }
    ++i;
  }
  return buckets.finish(false);
}

}  // namespace equipoise::skrull
