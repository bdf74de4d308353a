// DACP (Skrull Algorithm 1): distributing a short document over the CP ranks buys nothing but communication,
// keeping a long one on one rank breaks the balance and the memory. Documents ascending by length, each:
//   1. whole to the rank with the least load, if its remaining room takes it; else
//   2. whole to the rank with the most room, if that takes it; else
//   3. distributed (every rank pays s/N room and cost(s)/N load), if the rank with the least room has s/N;
//   else
//   4. roll back: the shortest local document of that rank becomes distributed, and again while any rank is
//      over its bucket; then the document is tried anew. No local document left there: failure.
// Departure from the printed listing: it gives back the rolled-back document's room on its own rank but
// forgets to charge the other ranks, and then the bucket size C is broken in silence. We charge every rank.
// A law that follows: a micro-batch of at most C*N tokens never fails. If the rank with the least room holds
// no local document, then all that it pays for is D/N for the D distributed tokens, and D + s <= C*N.
// Cost: O(documents * ranks).
#include "policies/skrull/placement.h"

namespace equipoise::skrull {

Placement place_dacp(const PlacementProblem& problem) {
  Buckets buckets(problem);
  for (std::size_t i = 0; i < problem.tokens.size();) {
    const std::size_t idle = buckets.least_loaded();
    const std::size_t roomy = buckets.most_room();
    if (buckets.fits_local(idle, i)) {
      buckets.place_local(idle, i);
    } else if (buckets.fits_local(roomy, i)) {
      buckets.place_local(roomy, i);
    } else if (buckets.fits_distributed(i) || !problem.rollback) {
      buckets.distribute(i);
    } else {
      if (!buckets.roll_back()) return buckets.finish(true);
      continue;  // with the same document
    }
    ++i;
  }
  return buckets.finish(false);
}

}  // namespace equipoise::skrull
