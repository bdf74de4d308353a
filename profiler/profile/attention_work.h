// The tiles, blocks and bytes of one fused attention call, counted over its documents.
//
// A fused kernel cuts queries into tiles of 128 rows and walks each over the keys that some row of it can
// see. How a call keeps several packed documents apart differs by library, and with it what the call
// computes:
//   varlen      each document has tiles of its own (FlashAttention's and cuDNN's packed calls)
//   block mask  one sequence under a map of 128 x 128 blocks: those without a visible pair are skipped,
//               those that the causal line or a document's border cuts are masked element by element
//               (FlexAttention)
//   dense mask  one sequence under a mask tensor: the whole square is computed (PyTorch's SDPA given a mask)
// Cost: O(1) a document; O(tiles) under a block mask or a window.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "profiler/profile/cost_models.h"

namespace equipoise {

inline constexpr int kAttentionTile = 128;  // queries of a tile
inline constexpr int kAttentionBlock = 64;  // keys of a block; a tile is two blocks wide

// Sums over the documents of one call, for one head.
struct AttentionWork {
  std::int64_t tiles = 0;
  std::int64_t masked_tiles = 0;  // under a block mask: cut blocks of 128 x 128
  std::int64_t blocks = 0;        // of 64 keys
  std::int64_t idle_rows = 0;     // rows missing in the last tiles, times the blocks of those tiles
  std::int64_t longest = 0;       // blocks of the longest tile
  std::int64_t query_tokens = 0;
  std::int64_t key_tokens = 0;

  // Bottom-right causal: the last query sees all keys. Tile i (from 0) ends at key
  // keys - queries + min((i + 1) * 128, queries), so a whole one has ceil(prefix / 64) + 2 (i + 1) blocks.
  void add_causal(std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = parts_of(queries, kAttentionTile);
    const std::int64_t prefix = parts_of(keys - queries, kAttentionBlock);
    const std::int64_t last = parts_of(keys, kAttentionBlock);
    tiles += count;
    masked_tiles += count;
    blocks += (count - 1) * (prefix + count) + last;
    idle_rows += (count * kAttentionTile - queries) * last;
    longest = last > longest ? last : longest;
    query_tokens += queries;
    key_tokens += keys;
  }
  void add_full(std::int64_t queries, std::int64_t keys);
  // Causal, and a query sees only the last `window` keys up to its own.
  void add_window(std::int64_t queries, std::int64_t keys, std::int64_t window);

 private:
  // Rounded up. Unsigned: a division by a power of two is a shift then, without a word for negative counts.
  static std::int64_t parts_of(std::int64_t tokens, int size) {
    const auto part = static_cast<std::uint64_t>(size);
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(tokens) + part - 1) / part);
  }
};

// Which of the keys up to its own a query sees: all keys of the document at all, all up to its own, or the
// last `window` of those (0: no window).
struct AttentionMask {
  bool causal = true;
  std::int64_t window = 0;
};

enum class DocumentMask { varlen, block_mask, dense_mask };
inline constexpr std::array<std::string_view, 3> kDocumentMaskNames{"varlen", "block-mask", "dense-mask"};

// Work of a call over `documents`, which lie one behind the other in queries and in keys. Documents without
// queries are left out. Under a window, or without the causal line, documents always count as varlen.
AttentionWork attention_work(AttentionMask mask, DocumentMask apart, std::span<const QueryKeys> documents);

}  // namespace equipoise
