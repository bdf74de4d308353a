// Adaptive (WLB-LLM section 5.3): per-document evens out the pairs but makes more and shorter segments, whose
// queries fill the kernel's tiles badly; per-sequence is the other way round. Per micro-batch, both are laid
// out and the one whose slowest rank is predicted faster is taken; a tie takes per-sequence. Where 2c does
// not divide the length, per-sequence is what would run: padded at its tail. Cost: both rules and one cost
// prediction a rank for each.
#include <algorithm>
#include <utility>

#include "policies/sharding/rules.h"

namespace equipoise {
namespace {

double slowest_rank_seconds(const Sharding& sharding, const AttentionCost& cost) {
  double slowest = 0;
  for (int r = 0; r < sharding.ranks(); ++r) slowest = std::max(slowest, cost.seconds(sharding.of_rank(r)));
  return slowest;
}

// Whether the slowest rank is predicted faster than `seconds`: known with the first rank that is not.
bool every_rank_within(const Sharding& sharding, const AttentionCost& cost, double seconds) {
  for (int r = 0; r < sharding.ranks(); ++r)
    if (!(cost.seconds(sharding.of_rank(r)) < seconds)) return false;
  return true;
}

void swap_result(Sharding& a, Sharding& b) {
  std::swap(a.segments, b.segments);
  std::swap(a.rank_begin, b.rank_begin);
  std::swap(a.rank_tokens, b.rank_tokens);
  std::swap(a.rank_local_tokens, b.rank_local_tokens);
  std::swap(a.padding_tokens, b.padding_tokens);
  std::swap(a.chosen, b.chosen);
}

}  // namespace

void shard_adaptive(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                    const AttentionCost& cost, Sharding& out) {
  if (out.alternative.empty()) out.alternative.resize(1);
  Sharding& other = out.alternative.front();
  ShardOptions padded = options;
  padded.pad = Pad::tail;
  shard_per_sequence(micro_batch, ranks, padded, cost, out);
  shard_per_document(micro_batch, ranks, options, cost, other);
  if (every_rank_within(other, cost, slowest_rank_seconds(out, cost))) swap_result(out, other);
}

}  // namespace equipoise
