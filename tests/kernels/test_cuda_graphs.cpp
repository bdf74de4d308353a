// What can be tested of the CUDA backend without a GPU: that cuDNN accepts our attention graphs for Hopper,
// how pieces are dealt into calls, and that a machine without a device gets a reason and not a crash.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/backend.h"
#include "kernels/cuda/attention.h"

using namespace equipoise::kernels;
using namespace equipoise::kernels::cuda;

namespace {
constexpr int kHopper = 90;
// Whether the module was built without cuDNN or its frontend.
bool absent() {
  return cudnn_version() == "absent";
}
}  // namespace

TEST_CASE("pieces that share keys go to different backward calls, the others to the first") {
  // Document of keys [0, 200): chunks against [0, 50) and [0, 200). Document [200, 293): against [200, 224),
  // [200, 293).
  const std::vector<Piece> pieces{{0, 50, 0, 50}, {50, 50, 0, 200}, {100, 24, 200, 24}, {124, 23, 200, 93}};
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].size() == 2);
  CHECK(rounds[0][1].key_begin == 200);
  CHECK(rounds[0][1].keys == 24);
  CHECK(rounds[1].size() == 2);
  CHECK(rounds[1][0].keys == 200);
  CHECK(ascending_rounds(std::vector<Piece>{{0, 5, 0, 5}, {5, 7, 5, 7}}).size() == 1);
}

TEST_CASE("a backward call goes through queries and keys in one direction") {
  // The second document's queries come first: its keys [100, 140) then stand before the first's [0, 30),
  // which needs a call of its own.
  const std::vector<Piece> pieces{{40, 30, 0, 30}, {0, 40, 100, 40}, {70, 10, 140, 20}};
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].size() == 2);  // keys [100, 140) and [140, 160)
  CHECK(rounds[0][0].query_begin == 0);
  CHECK(rounds[0][1].query_begin == 70);
  CHECK(rounds[1][0].key_begin == 0);
  for (const std::vector<Piece>& round : rounds) {
    const CallRows rows = call_rows(round, 4);
    CHECK(std::is_sorted(rows.query_begins.begin(), rows.query_begins.end()));
    CHECK(std::is_sorted(rows.key_begins.begin(), rows.key_begins.end()));
    for (std::size_t i = 0; i < 4; ++i) {  // each piece ends where the next begins, or before
      CHECK(rows.query_begins[i] + rows.query_lengths[i] <= rows.query_begins[i + 1]);
      CHECK(rows.key_begins[i] + rows.key_lengths[i] <= rows.key_begins[i + 1]);
    }
  }
}

TEST_CASE("causal and full pieces never share a call") {
  const std::vector<Piece> pieces{{10, 5, 0, 9, true}, {0, 5, 20, 5}, {5, 5, 30, 5, true}, {15, 2, 40, 2}};
  const auto forward = by_mask(pieces);
  REQUIRE(forward.size() == 2);
  CHECK(forward[0].size() == 2);  // causal, queries from 0 and from 15
  CHECK(forward[0][1].query_begin == 15);
  CHECK(forward[1].size() == 2);  // full, queries from 5 and from 10
  CHECK(forward[1][0].query_begin == 5);
  CHECK(forward[1][1].query_begin == 10);
  // Backward, the full ones come with descending keys: 30 for the queries from 5, 0 for those from 10.
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 3);
  for (const std::vector<Piece>& round : rounds)
    for (const Piece& piece : round) CHECK(piece.full == round.front().full);
  CHECK(by_mask({}).empty());
  CHECK(ascending_rounds({}).empty());
}

TEST_CASE("slots beyond the pieces are empty and begin where the last piece ends") {
  const std::vector<Piece> pieces{{0, 5, 0, 9}, {5, 2, 9, 2}};
  const CallRows rows = call_rows(pieces, 4);
  CHECK(rows.query_lengths == std::vector<std::int32_t>{5, 2, 0, 0});
  CHECK(rows.key_lengths == std::vector<std::int32_t>{9, 2, 0, 0});
  CHECK(rows.query_begins == std::vector<std::int64_t>{0, 5, 7, 7, 7});
  CHECK(rows.key_begins == std::vector<std::int64_t>{0, 9, 11, 11, 11});
  CHECK(cover_queries(pieces, 7));
  CHECK(cover_keys(pieces, 11));
  CHECK_FALSE(cover_keys(pieces, 12));
}

TEST_CASE("declared sizes are rounded up, so that similar calls share a plan, but by an eighth at most") {
  // 300, 1000, 1500 and 5000 rows are 3, 8, 12 and 40 tiles of 128; 40 is five eighths above 32, in steps
  // of 4.
  const DeclaredAttention declared =
      declared_for({128, 8, 2}, Pass::forward, false, 1300, 300, 1000, 1500, 5000);
  CHECK(declared.pieces == 1408);  // 1024 + 3 * 128
  CHECK(declared.most_queries == 3 * 128);
  CHECK(declared.most_keys == 8 * 128);
  CHECK(declared.total_queries == 12 * 128);
  CHECK(declared.total_keys == 40 * 128);
  CHECK(declared_for({64, 1, 1}, Pass::forward, false, 1, 1, 1, 1, 1).most_queries == 128);
  for (std::int64_t rows = 1; rows < 300000; rows += 997) {
    const std::int64_t made =
        declared_for({64, 1, 1}, Pass::forward, false, rows, rows, rows, rows, rows).pieces;
    CHECK(made >= rows);
    CHECK(8 * made <= 9 * rows + 8);
  }
}

TEST_CASE("cuDNN accepts our packed attention, causal and full, on Hopper, forward and backward" *
          doctest::skip(absent())) {
  for (const AttentionShape& shape :
       {AttentionShape{64, 1, 1}, AttentionShape{64, 14, 2}, AttentionShape{128, 8, 1},
        AttentionShape{128, 32, 32}, AttentionShape{128, 32, 8}}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::int64_t keys : {128, 4096, 262144}) {
        for (const bool full : {false, true}) {
          CAPTURE(shape.head_dim);
          CAPTURE(shape.query_heads);
          CAPTURE(keys);
          CAPTURE(full);
          AttentionGraph graph(declared_for(shape, pass, full, 7, 100, keys, 700, 7 * keys), kHopper);
          CHECK(graph.validate() == "");
        }
      }
    }
  }
}

TEST_CASE("cuDNN's validation is a test that can fail: query heads must be a multiple of KV heads" *
          doctest::skip(absent())) {
  AttentionGraph graph(declared_for({128, 8, 3}, Pass::forward, false, 1, 128, 128, 128, 128), kHopper);
  CHECK(graph.validate() != "");
}

TEST_CASE("without a device the CUDA backend is absent and says why") {
  std::string reason;
  if (make_cuda_backend(reason) == nullptr) CHECK_FALSE(reason.empty());
}
