#include "profiler/profile/attention_work.h"

#include <algorithm>

namespace equipoise {
namespace {

std::int64_t tiles_of(std::int64_t tokens) {
  return (tokens + kAttentionTile - 1) / kAttentionTile;
}
std::int64_t blocks_of(std::int64_t keys) {
  return (keys + kAttentionBlock - 1) / kAttentionBlock;
}

// Walks the documents of one sequence under a map of 128 x 128 blocks, row of blocks by row of blocks.
class BlockMap {
 public:
  void add(const QueryKeys& document) {
    const std::int64_t prefix = document.keys - document.queries;
    const std::int64_t end = first_query_ + document.queries;
    for (std::int64_t row = first_query_; row < end;) {
      const std::int64_t tile = row / kAttentionTile;
      const std::int64_t next = std::min((tile + 1) * kAttentionTile, end);
      const bool shared = next - row < kAttentionTile;  // with another document, or with nothing
      visit(tile, prefix + row - first_query_, prefix + next - first_query_, shared);
      row = next;
    }
    first_query_ = end;
    first_key_ += document.keys;
    work_.query_tokens += document.queries;
    work_.key_tokens += document.keys;
  }

  AttentionWork work() {
    close_tile();
    return work_;
  }

 private:
  // Rows of one document in one tile: the first of them sees the document's keys up to `least` and itself,
  // the last up to `most`.
  void visit(std::int64_t tile, std::int64_t least, std::int64_t most, bool shared) {
    if (tile != tile_) {
      close_tile();
      tile_ = tile;
      work_.tiles += 1;
    }
    const std::int64_t begin = std::max(next_column_, first_key_ / kAttentionTile);
    const std::int64_t end = tiles_of(first_key_ + most);
    if (end <= begin) return;
    const std::int64_t seen_by_all = (first_key_ + least + 1) / kAttentionTile;
    const std::int64_t border =
        first_key_ % kAttentionTile != 0 && begin == first_key_ / kAttentionTile ? 1 : 0;
    const std::int64_t cut = end - std::max(begin, seen_by_all) + border;
    work_.masked_tiles += shared ? end - begin : std::min(end - begin, cut);
    columns_ += end - begin;
    next_column_ = end;
  }

  void close_tile() {
    const std::int64_t blocks = columns_ * (kAttentionTile / kAttentionBlock);
    work_.blocks += blocks;
    work_.longest = std::max(work_.longest, blocks);
    columns_ = 0;
    next_column_ = 0;
  }

  AttentionWork work_;
  std::int64_t first_query_ = 0;
  std::int64_t first_key_ = 0;
  std::int64_t tile_ = -1;
  std::int64_t columns_ = 0;      // blocks of this row of blocks so far
  std::int64_t next_column_ = 0;  // the first block that no document of this tile has reached
};

}  // namespace

void AttentionWork::add_full(std::int64_t queries, std::int64_t keys) {
  const std::int64_t row = blocks_of(keys);
  tiles += tiles_of(queries);
  blocks += tiles_of(queries) * row;
  idle_rows += (tiles_of(queries) * kAttentionTile - queries) * row;
  longest = std::max(longest, row);
  query_tokens += queries;
  key_tokens += keys;
}

void AttentionWork::add_window(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t prefix = keys - queries;
  for (std::int64_t begin = 0; begin < queries; begin += kAttentionTile) {
    const std::int64_t end = std::min(begin + kAttentionTile, queries);
    const std::int64_t first_key = std::max<std::int64_t>(0, prefix + begin - window + 1);
    const std::int64_t row = blocks_of(prefix + end) - first_key / kAttentionBlock;
    tiles += 1;
    masked_tiles += 1;
    blocks += row;
    idle_rows += (kAttentionTile - (end - begin)) * row;
    longest = std::max(longest, row);
  }
  query_tokens += queries;
  key_tokens += keys;
}

AttentionWork attention_work(AttentionMask mask, DocumentMask apart, std::span<const QueryKeys> documents) {
  AttentionWork work;
  BlockMap map;
  QueryKeys all;
  const bool plain = mask.causal && mask.window == 0;
  for (const QueryKeys& document : documents) {
    const auto [queries, keys] = document;
    if (queries <= 0) continue;
    if (!mask.causal) {
      work.add_full(queries, keys);
    } else if (!plain) {
      work.add_window(queries, keys, mask.window);
    } else if (apart == DocumentMask::varlen) {
      work.add_causal(queries, keys);
    } else if (apart == DocumentMask::block_mask) {
      map.add(document);
    } else {
      all.queries += queries;
      all.keys += keys;
    }
  }
  if (plain && apart == DocumentMask::block_mask) return map.work();
  if (all.queries > 0) work.add_full(all.queries, all.keys);
  return work;
}

}  // namespace equipoise
