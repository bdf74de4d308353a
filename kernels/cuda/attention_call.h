// Which pieces go into one cuDNN call, and in which order. A call has one mask, so causal and full pieces go
// to different ones. Of either kind the forward pass takes all at once. The backward pass writes gradients of
// keys, and two pieces of one call that share keys would overwrite each other's, so pieces are dealt into
// rounds within which no key row occurs twice; gradients of later rounds are added.
//
// Offsets must ascend inside a backward call, of queries and of keys: with grouped-query attention cuDNN
// first writes gradients of keys by query head and then sums them head by head in an operation that is told
// of ragged offsets but not of lengths, so where a piece ends can only be where the next one starts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace equipoise::kernels::cuda {

std::vector<Piece> by_query_row(std::span<const Piece> pieces);

// What forward calls take: all causal pieces, then all full ones, each by query row; no list is empty.
std::vector<std::vector<Piece>> by_mask(std::span<const Piece> pieces);

// What backward calls take. Pieces by round, inside a round in the order of their query rows and of their key
// rows; a piece goes to the first round of its kind whose keys all lie before its own. O(p^2) at worst.
std::vector<std::vector<Piece>> ascending_rounds(std::span<const Piece> pieces);

// One entry a slot, and the end of the last piece. Slots without a piece have no rows and begin at that end.
struct CallRows {
  std::vector<std::int32_t> query_lengths;  // of each slot
  std::vector<std::int32_t> key_lengths;
  std::vector<std::int64_t> query_begins;  // slots + 1
  std::vector<std::int64_t> key_begins;
};
CallRows call_rows(std::span<const Piece> pieces, std::int64_t slots);

// Whether the pieces, which share no row on that side, leave none of the first `rows` rows out.
bool cover_queries(std::span<const Piece> pieces, std::int64_t rows);
bool cover_keys(std::span<const Piece> pieces, std::int64_t rows);

}  // namespace equipoise::kernels::cuda
