#include "kernels/cuda/attention_call.h"

#include <algorithm>

namespace equipoise::kernels::cuda {

std::vector<Piece> by_query_row(std::span<const Piece> pieces) {
  std::vector<Piece> sorted(pieces.begin(), pieces.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Piece& a, const Piece& b) { return a.query_begin < b.query_begin; });
  return sorted;
}

std::vector<std::vector<Piece>> by_mask(std::span<const Piece> pieces) {
  std::vector<std::vector<Piece>> kinds(2);
  for (const Piece& piece : by_query_row(pieces)) kinds[piece.full ? 1 : 0].push_back(piece);
  kinds.erase(std::remove_if(kinds.begin(), kinds.end(), [](const auto& kind) { return kind.empty(); }),
              kinds.end());
  return kinds;
}

std::vector<std::vector<Piece>> ascending_rounds(std::span<const Piece> pieces) {
  std::vector<std::vector<Piece>> rounds;
  for (const Piece& piece : by_query_row(pieces)) {
    const auto fits = [&](const std::vector<Piece>& round) {
      return round.back().full == piece.full && round.back().key_begin + round.back().keys <= piece.key_begin;
    };
    const auto round = std::find_if(rounds.begin(), rounds.end(), fits);
    if (round == rounds.end()) {
      rounds.push_back({piece});
    } else {
      round->push_back(piece);
    }
  }
  return rounds;
}

CallRows call_rows(std::span<const Piece> pieces, std::int64_t slots) {
  const auto count = static_cast<std::size_t>(slots);
  const std::int64_t query_end = pieces.empty() ? 0 : pieces.back().query_begin + pieces.back().queries;
  const std::int64_t key_end = pieces.empty() ? 0 : pieces.back().key_begin + pieces.back().keys;
  CallRows rows{std::vector<std::int32_t>(count, 0), std::vector<std::int32_t>(count, 0),
                std::vector<std::int64_t>(count + 1, query_end),
                std::vector<std::int64_t>(count + 1, key_end)};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    rows.query_lengths[i] = static_cast<std::int32_t>(pieces[i].queries);
    rows.key_lengths[i] = static_cast<std::int32_t>(pieces[i].keys);
    rows.query_begins[i] = pieces[i].query_begin;
    rows.key_begins[i] = pieces[i].key_begin;
  }
  return rows;
}

bool cover_queries(std::span<const Piece> pieces, std::int64_t rows) {
  std::int64_t covered = 0;
  for (const Piece& piece : pieces) covered += piece.queries;
  return covered == rows;
}

bool cover_keys(std::span<const Piece> pieces, std::int64_t rows) {
  std::int64_t covered = 0;
  for (const Piece& piece : pieces) covered += piece.keys;
  return covered == rows;
}

}  // namespace equipoise::kernels::cuda
