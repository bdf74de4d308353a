// Snake (PTRR): query blocks sorted by masked area, largest first, and dealt to the ranks in snake order:
// 0, 1, .., c-1, c-1, .., 1, 0, 0, 1, .. so that whoever got the larger block of one round gets the smaller
// one of the next. Cost: O(blocks log blocks).
#include <cstddef>

#include "policies/base/index.h"
#include "policies/sharding/query_blocks.h"
#include "policies/sharding/rules.h"

namespace equipoise {

void shard_snake(const MicroBatch& micro_batch, int ranks, const ShardOptions& options, const AttentionCost&,
                 Sharding& out) {
  const sharding::View view(micro_batch, ranks);
  const sharding::QueryBlocks blocks = sharding::cut_query_blocks(view, options.block, out);
  const auto c = static_cast<std::size_t>(ranks);
  for (std::size_t k = 0; k < blocks.order.size(); ++k) {
    const std::size_t in_round = k % c;
    const bool forward = k / c % 2 == 0;
    blocks.rank[at(blocks.order[k])] = static_cast<std::int64_t>(forward ? in_round : c - 1 - in_round);
  }
  sharding::lay_out_blocks(view, options.block, blocks, out);
  out.chosen = "snake";
}

}  // namespace equipoise
