// Fused attention: the tiles, blocks and bytes of one call, counted over its documents, and its time as a
// function of these counts.
//
// A fused kernel cuts queries into tiles of 128 rows and multiplies each with all keys that some row of it
// sees. Libraries separate packed documents in different ways, which decides what the call computes:
//   varlen      each document has its own tiles (FlashAttention's and cuDNN's packed calls)
//   block mask  one sequence under a map of 128 x 128 blocks: those without a visible pair are skipped,
//               those that the causal line or a document's border cuts are masked element by element
//               (FlexAttention)
//   dense mask  one sequence under a mask tensor: the whole square is computed (PyTorch's SDPA given a mask);
//               rows of a padded batch are sequences of their own, each with its square
//   rectangles  each document's whole rectangle (batched products that write their scores)
//   square causal  as varlen where each document has as many keys as queries; else every document's whole
//               rectangle is computed (cuDNN 9.19 backward under a bottom-right mask, measured)
// The backward pass swaps the roles: a tile is 128 keys, whose gradients it holds, and runs over the queries
// that see some of them (FlashAttention 2 and 3: csrc/flash_attn/src/flash_bwd_kernel.h,
// hopper/mainloop_bwd). So a few queries after long keys make one tile forward and many backward. Cost: O(1)
// per document, O(tiles) under a block mask or a window.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "profiler/profile/cost_models.h"

namespace equipoise {

inline constexpr int kAttentionTile = 128;  // queries of a tile (backward: keys)
inline constexpr int kAttentionBlock = 64;  // keys of a block (backward: queries); a tile is two blocks wide

enum class AttentionPass { forward, backward };

// Sums over the documents of one call, for one head.
struct AttentionWork {
  std::int64_t pieces = 0;
  std::int64_t most_tiles = 0;  // of one piece; a padded grid has so many places for each piece
  std::int64_t tiles = 0;
  std::int64_t masked_tiles = 0;  // under a block mask: cut blocks of 128 x 128
  std::int64_t blocks = 0;        // blocks of 64 keys
  std::int64_t longest = 0;       // blocks of the longest tile
  std::int64_t query_tokens = 0;
  std::int64_t key_tokens = 0;
  bool second_call = false;  // square causal: whole rectangles of several documents

  // Rounds up. Unsigned arithmetic makes the division by a power of two a plain shift.
  static std::int64_t parts_of(std::int64_t tokens, int size) {
    const auto part = static_cast<std::uint64_t>(size);
    return static_cast<std::int64_t>((static_cast<std::uint64_t>(tokens) + part - 1) / part);
  }
  // Bottom-right causal: the last query sees all keys. Tile i (from 0) ends at key
  // keys - queries + min((i + 1) * 128, queries), so a whole one has ceil(prefix / 64) + 2 (i + 1) blocks.
  static std::int64_t causal_blocks(std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = parts_of(queries, kAttentionTile);
    const std::int64_t prefix = parts_of(keys - queries, kAttentionBlock);
    return (count - 1) * (prefix + count) + parts_of(keys, kAttentionBlock);
  }
  // In the backward pass, tiles of 128 keys before the first query's own key see all queries. The n-th tile
  // after that misses the first 128 n - rest queries, in whole blocks.
  static std::int64_t causal_blocks_backward(std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = parts_of(keys, kAttentionTile);
    const std::int64_t after = count - 1 - (keys - queries) / kAttentionTile;
    const std::int64_t rest = parts_of((keys - queries) % kAttentionTile, kAttentionBlock);
    return count * parts_of(queries, kAttentionBlock) - after * (after + 1 - rest);
  }
  void add_causal(std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = parts_of(queries, kAttentionTile);
    add_piece(queries, keys, count, count, causal_blocks(queries, keys), parts_of(keys, kAttentionBlock));
  }
  void add_causal_backward(std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = parts_of(keys, kAttentionTile);
    add_piece(queries, keys, count, count - (keys - queries) / kAttentionTile,
              causal_blocks_backward(queries, keys), parts_of(queries, kAttentionBlock));
  }
  void add_full(std::int64_t queries, std::int64_t keys, AttentionPass pass = AttentionPass::forward);
  // The mask is causal, and a query sees only the last `window` keys up to its own.
  void add_window(std::int64_t queries, std::int64_t keys, std::int64_t window);
  void add_window_backward(std::int64_t queries, std::int64_t keys, std::int64_t window);

  // Places without a tile in a grid that has as many places for every piece as for the longest.
  [[nodiscard]] std::int64_t empty_tiles() const {
    return pieces * most_tiles > tiles ? pieces * most_tiles - tiles : 0;
  }

 private:
  void add_piece(std::int64_t queries, std::int64_t keys, std::int64_t its_tiles, std::int64_t masked,
                 std::int64_t its_blocks, std::int64_t its_longest) {
    pieces += 1;
    most_tiles = its_tiles > most_tiles ? its_tiles : most_tiles;
    tiles += its_tiles;
    masked_tiles += masked;
    blocks += its_blocks;
    longest = its_longest > longest ? its_longest : longest;
    query_tokens += queries;
    key_tokens += keys;
  }
};

// Which keys of its document a query sees: all of them, those up to its own (causal), or the last `window` of
// those (0: no window).
struct AttentionMask {
  bool causal = true;
  std::int64_t window = 0;
};

enum class DocumentMask { varlen, block_mask, dense_mask, square_causal, rectangles };
inline constexpr std::array<std::string_view, 5> kDocumentMaskNames{"varlen", "block-mask", "dense-mask",
                                                                    "square-causal", "rectangles"};

// The work of a call over `documents`, which follow one another in queries and in keys. Documents without
// queries are skipped. Under a window, or without a causal mask, documents always count as varlen.
AttentionWork attention_work(AttentionMask mask, DocumentMask apart, std::span<const QueryKeys> documents,
                             AttentionPass pass = AttentionPass::forward);

// A packed attention call, counted piece by piece. On a kernel that gives each document its own tiles, and on
// a square-causal one, the counts determine the time of both passes. Hot loops count a call once and price
// both passes from it.

struct AttentionCall {
  AttentionWork work, backward;
  // Blocks of the backward if it computes whole rectangles, which a square-causal kernel does for causal
  // pieces of which some have fewer queries than keys; 0 if none has.
  std::int64_t rectangle_blocks = 0;
  std::int64_t fewest_queries = INT64_MAX;  // fewest queries of a piece
  std::int64_t most_keys = 0;

  void add_causal(std::int64_t queries, std::int64_t keys) {
    if (queries <= 0) return;
    work.add_causal(queries, keys);
    backward.add_causal_backward(queries, keys);
    extend(queries, keys);
  }
  // `window`: as in AttentionModel, but not 0. Keys that no query sees do not count.
  void add_window(std::int64_t queries, std::int64_t keys, std::int64_t window) {
    if (queries <= 0) return;
    keys = std::min(keys, queries + window - 1);
    if (keys <= window) return add_causal(queries, keys);
    work.add_window(queries, keys, window);
    backward.add_window_backward(queries, keys, window);
    extend(queries, keys);
  }
  // The backward of a square-causal kernel.
  [[nodiscard]] AttentionWork square_causal_backward() const {
    if (rectangle_blocks == 0) return backward;
    AttentionWork whole = backward;
    whole.masked_tiles = 0;
    whole.blocks = rectangle_blocks;
    whole.second_call = whole.pieces > 1;
    return whole;
  }
  // The call with each of its pieces repeated `times` times.
  [[nodiscard]] AttentionCall repeated(std::int64_t times) const {
    AttentionCall all = *this;
    all.rectangle_blocks *= times;
    for (AttentionWork* pass : {&all.work, &all.backward})
      for (std::int64_t* sum : {&pass->pieces, &pass->tiles, &pass->masked_tiles, &pass->blocks,
                                &pass->query_tokens, &pass->key_tokens})
        *sum *= times;
    return all;
  }

 private:
  void extend(std::int64_t queries, std::int64_t keys) {
    fewest_queries = std::min(fewest_queries, queries);
    most_keys = std::max(most_keys, keys);
  }
};

// The same of causal pieces alone, with what both passes share counted once: their tokens, and the most
// queries and keys of a piece, from which the largest tiles follow. These are the sums of the hottest loop.
class CausalCounts {
 public:
  void add(std::int64_t queries, std::int64_t keys) {
    if (queries <= 0) return;
    pieces_ += 1;
    query_tokens_ += queries;
    key_tokens_ += keys;
    fewest_queries_ = std::min(fewest_queries_, queries);
    most_queries_ = std::max(most_queries_, queries);
    most_keys_ = std::max(most_keys_, keys);
    tiles_ += AttentionWork::parts_of(queries, kAttentionTile);
    blocks_ += AttentionWork::causal_blocks(queries, keys);
    key_tiles_ += AttentionWork::parts_of(keys, kAttentionTile);
    unmasked_key_tiles_ += (keys - queries) / kAttentionTile;
    key_blocks_ += AttentionWork::causal_blocks_backward(queries, keys);
    rectangle_blocks_ +=
        AttentionWork::parts_of(keys, kAttentionTile) * AttentionWork::parts_of(queries, kAttentionBlock);
  }
  [[nodiscard]] AttentionCall call() const {
    const auto most = [](std::int64_t tokens, int size) { return AttentionWork::parts_of(tokens, size); };
    AttentionCall call;
    call.work = {pieces_, most(most_queries_, kAttentionTile), tiles_,        tiles_,
                 blocks_, most(most_keys_, kAttentionBlock),   query_tokens_, key_tokens_};
    call.backward = {
        pieces_,     most(most_keys_, kAttentionTile),     key_tiles_,    key_tiles_ - unmasked_key_tiles_,
        key_blocks_, most(most_queries_, kAttentionBlock), query_tokens_, key_tokens_};
    if (query_tokens_ < key_tokens_) call.rectangle_blocks = rectangle_blocks_;
    call.fewest_queries = fewest_queries_;
    call.most_keys = most_keys_;
    return call;
  }

 private:
  std::int64_t pieces_ = 0, query_tokens_ = 0, key_tokens_ = 0;
  std::int64_t fewest_queries_ = INT64_MAX, most_queries_ = 0, most_keys_ = 0;
  std::int64_t tiles_ = 0, blocks_ = 0;                                   // forward
  std::int64_t key_tiles_ = 0, unmasked_key_tiles_ = 0, key_blocks_ = 0;  // backward
  std::int64_t rectangle_blocks_ = 0;                                     // backward, without a mask
};

// Counts a call whose pieces for_each(add) passes to add(queries, keys). `window`: 0 where queries see all
// keys up to their own.
template <class ForEachPiece>
AttentionCall count_call(std::int64_t window, const ForEachPiece& for_each) {
  if (window == 0) {
    CausalCounts counts;
    for_each([&counts](std::int64_t queries, std::int64_t keys) { counts.add(queries, keys); });
    return counts.call();
  }
  AttentionCall call;
  for_each(
      [&call, window](std::int64_t queries, std::int64_t keys) { call.add_window(queries, keys, window); });
  return call;
}
inline AttentionCall count_call(std::span<const QueryKeys> pieces, std::int64_t window) {
  return count_call(window, [pieces](const auto& add) {
    for (const QueryKeys& piece : pieces) add(piece.queries, piece.keys);
  });
}

// The time of one fused attention kernel as a function of tiles, blocks and bytes.
//
// One SM computes a tile of 128 queries over the blocks of 64 keys that some row of it sees. The call takes
// the time of the work spread over all SMs, but at least that of its longest tile (less the share of it that
// is already in the mean). A p-norm joins the two and also models the last, partly filled wave. Loads and
// stores of one tile run under the products of others, so the time of the bytes joins that of the work by a
// 2-norm: the sum would charge a call over short sequences both in full, and the maximum would ignore that
// both matter near the ridge:
//   compute = ((sum of tile times / SMs)^p + (longest tile * (1 - 1 / SMs))^p)^(1/p)
//   time = launch + (compute^2 + (bytes / bandwidth)^2)^(1/2) + bytes of the passes around it / bandwidth
//   tile time = tile + (blocks + diagonal, if the tile is cut by the mask) * block
//   a tile with missing rows is computed whole
//   FlashAttention 2 launches as many tiles for every piece as the longest has; an empty one costs
//   `empty_tile`
//   tile = tile_us + tile_us_per_128 * d/128;   block likewise (per 128 keys): softmax does not grow with
//   the head dim d; above d = 128 kernels use smaller tiles, which block_us_per_128_above makes up for
// Without extra parameters, the form reproduces the constant time below 128 queries, the inefficiency of
// short queries over long keys (a whole tile for few rows), the causal half with its diagonal of whole
// blocks, documents that share a call, and heads that do not fill the SMs. Cost: O(1) per document.

struct AttentionParameters {
  double launch_us = 0;
  double tile_us = 0;
  double tile_us_per_128 = 0;
  double block_us = 0;
  double block_us_per_128 = 0;
  double block_us_per_128_above = 0;  // per 128 of head dim beyond 128
  double pass_rows = 0;  // row pairs per query that are read or written around the main kernel; 0: unknown
  double empty_tile_us = 0;    // 0: the grid has no empty tiles
  double diagonal_blocks = 0;  // extra work of a masked tile, in blocks
  double imbalance_power = 2;  // p
  double memory_GBps = 1;
  // Bytes of a key-value row relative to those of a query row: 1 forward; backward 2 where the passes around
  // the main kernel are counted separately (`pass_rows`), else less, since each query row is also accumulated
  // in fp32 (dQ) and read again.
  double key_share = 1;
  // The shortest time that the published benchmark could show, because its host took so long to issue a call.
  // It is no part of the kernel: only observed_attention_seconds includes it.
  double host_us = 0;
  // The square-causal mask has it: chunks of a document share keys, so the kernel runs twice and gradients of
  // keys are added. 0: unknown.
  double second_call_us = 0;
};

double attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                         const AttentionWork& work);
double observed_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                                  const AttentionWork& work);

// The table of one of a profile's attention kernels. Throws UserError with those that it has.
const nlohmann::json& attention_kernel(const Profile& profile, const std::string& name);
AttentionParameters attention_parameters(const nlohmann::json& table, const std::string& where);
// The table's "document_mask", by default varlen.
DocumentMask document_mask(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const AttentionParameters& fit);

}  // namespace equipoise
