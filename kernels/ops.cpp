#include "kernels/ops.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace equipoise::kernels {

static void check_shape(const AttentionShape& shape) {
  if (shape.head_dim < 16 || shape.head_dim > 256 || shape.head_dim % 16 != 0) {
    throw std::invalid_argument("attention: head dim " + std::to_string(shape.head_dim) +
                                " is not a multiple of 16 between 16 and 256");
  }
  if (shape.kv_heads < 1 || shape.query_heads < 1 || shape.query_heads % shape.kv_heads != 0) {
    throw std::invalid_argument("attention: " + std::to_string(shape.query_heads) +
                                " query heads are no multiple of " + std::to_string(shape.kv_heads) +
                                " KV heads");
  }
}

static void check_piece(const Piece& piece, std::size_t index) {
  const std::string where = "attention: piece " + std::to_string(index) + ": ";
  if (piece.query_begin < 0 || piece.key_begin < 0)
    throw std::invalid_argument(where + "a negative first row");
  if (piece.queries < 1) throw std::invalid_argument(where + std::to_string(piece.queries) + " queries");
  if (piece.full) {
    if (piece.keys < 1) throw std::invalid_argument(where + std::to_string(piece.keys) + " keys");
    return;
  }
  if (piece.keys < piece.queries) {
    throw std::invalid_argument(where + std::to_string(piece.keys) + " keys for " +
                                std::to_string(piece.queries) +
                                " queries: the first queries would see nothing");
  }
}

void validate_attention(const AttentionShape& shape, std::span<const Piece> pieces) {
  check_shape(shape);
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;  // [begin, end) of each piece's queries
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_piece(pieces[i], i);
    rows.emplace_back(pieces[i].query_begin, pieces[i].query_begin + pieces[i].queries);
  }
  std::sort(rows.begin(), rows.end());
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].first < rows[i - 1].second) {
      throw std::invalid_argument("attention: query row " + std::to_string(rows[i].first) +
                                  " is in two pieces");
    }
  }
}

std::int64_t query_rows_of(std::span<const Piece> pieces) {
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) rows = std::max(rows, piece.query_begin + piece.queries);
  return rows;
}

std::int64_t key_rows_of(std::span<const Piece> pieces) {
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) rows = std::max(rows, piece.key_begin + piece.keys);
  return rows;
}

}  // namespace equipoise::kernels
