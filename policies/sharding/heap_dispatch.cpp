// Heap dispatch (MagiAttention's load-balanced dispatch): equal query blocks, largest masked area first, each
// to the least loaded rank that still has a free slot; ties go to the lower rank. Every rank has
// ceil(blocks / c) slots, so token counts stay equal to within a block while the pairs are balanced.
// Cost: O(blocks * (log blocks + c)).
#include <cstdint>
#include <vector>

#include "policies/base/index.h"
#include "policies/sharding/query_blocks.h"
#include "policies/sharding/rules.h"

namespace equipoise {

void shard_heap_dispatch(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                         const AttentionCost&, Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  const sharding::QueryBlocks blocks = sharding::cut_query_blocks(view, options.block, out);
  const auto c = static_cast<std::size_t>(ranks);
  const auto slots = static_cast<std::int64_t>((blocks.order.size() + c - 1) / c);

  // The sums live in rank_tokens and rank_local_tokens until the layout gives those their real values.
  std::vector<std::int64_t>& load = out.rank_tokens;
  std::vector<std::int64_t>& used = out.rank_local_tokens;
  load.assign(c, 0);
  used.assign(c, 0);
  for (const std::int64_t b : blocks.order) {
    std::size_t best = c;
    for (std::size_t r = 0; r < c; ++r)
      if (used[r] < slots && (best == c || load[r] < load[best])) best = r;
    load[best] += blocks.pairs[at(b)];
    ++used[best];
    blocks.rank[at(b)] = static_cast<std::int64_t>(best);
  }
  sharding::lay_out_blocks(view, options.block, blocks, out);
  out.chosen = "heap-dispatch";
}

}  // namespace equipoise
