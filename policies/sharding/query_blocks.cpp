// Query blocks: the packed sequence cut into equal blocks of queries, each a unit of dispatch to a CP rank.
// Shared by heap-dispatch and snake, which differ only in how they deal the blocks out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/sharding/rules.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

// Query blocks: the packed sequence cut into equal blocks of queries, each a unit of dispatch to a CP rank.
// Shared by heap-dispatch and snake, which differ only in how they deal the blocks out.

namespace sharding {

// Lives in Sharding::work, so that nothing is allocated from one micro-batch to the next.
struct QueryBlocks {
  std::span<std::int64_t> pairs;  // causal pairs of block b: its masked area
  std::span<std::int64_t> order;  // blocks by pairs, largest first, ties to the lower index
  std::span<std::int64_t> rank;   // to be filled in by the rule
};

// Cuts the distributed tokens into blocks of `block` queries (the last may be shorter) and sorts them.
// O(documents + blocks log blocks).
QueryBlocks cut_query_blocks(const View& view, std::int64_t block, Sharding& out);

// Lays the segments out by blocks.rank; a rank's blocks stay in sequence order and are never merged.
void lay_out_blocks(const View& view, std::int64_t block, const QueryBlocks& blocks, Sharding& out);

namespace {

// visit(block, segment) for every piece of the sequence that lies in one block and one document.
template <class Visit>
void for_each_piece(const View& view, std::int64_t block, const Visit& visit) {
  std::size_t b = 0;
  std::int64_t room = block;
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (!view.distributed(i)) continue;
    for (std::int64_t at = 0; at < view.tokens(i);) {
      const std::int64_t take = std::min(view.tokens(i) - at, room);
      visit(b, view.segment(i, at, at + take));
      at += take;
      room -= take;
      if (room == 0) {
        ++b;
        room = block;
      }
    }
  }
}

}  // namespace

QueryBlocks cut_query_blocks(const View& view, std::int64_t block, Sharding& out) {
  const auto count = static_cast<std::size_t>((view.distributed_tokens() + block - 1) / block);
  out.work.assign(3 * count, 0);
  const std::span<std::int64_t> work(out.work);
  const QueryBlocks blocks{work.first(count), work.subspan(count, count), work.last(count)};
  for_each_piece(view, block, [&](std::size_t b, const Segment& s) { blocks.pairs[b] += s.pairs(); });
  std::iota(blocks.order.begin(), blocks.order.end(), 0);
  const auto heaviest_first = [&](std::int64_t b) { return std::pair(-blocks.pairs[at(b)], b); };
  std::ranges::sort(blocks.order, {}, heaviest_first);
  return blocks;
}

void lay_out_blocks(const View& view, std::int64_t block, const QueryBlocks& blocks, Sharding& out) {
  lay_out(view, 2, out, [&](const auto& emit) {
    for_each_piece(view, block,
                   [&](std::size_t b, const Segment& s) { emit(static_cast<int>(blocks.rank[b]), 1, s); });
  });
}

}  // namespace sharding

// Heap dispatch (MagiAttention's load-balanced dispatch): equal query blocks, largest masked area first, each
// to the least loaded rank that still has a free slot; ties go to the lower rank. Every rank has
// ceil(blocks / c) slots, so token counts stay equal to within a block while the pairs are balanced.
// Cost: O(blocks * (log blocks + c)).
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

// Snake (PTRR): query blocks sorted by masked area, largest first, and dealt to the ranks in snake order:
// 0, 1, .., c-1, c-1, .., 1, 0, 0, 1, .. so that whoever got the larger block of one round gets the smaller
// one of the next. Cost: O(blocks log blocks).
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
