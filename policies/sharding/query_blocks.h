// Query blocks: the packed sequence cut into equal blocks of queries, each a unit of dispatch to a CP rank.
// Shared by heap-dispatch and snake, which differ only in how they deal the blocks out.
#pragma once

#include <cstdint>
#include <span>

#include "policies/sharding/segment_writer.h"
#include "policies/sharding/sharding.h"

namespace equipoise::sharding {

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

}  // namespace equipoise::sharding
