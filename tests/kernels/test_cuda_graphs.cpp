// What can be tested of the CUDA backend without a GPU: that cuDNN accepts our attention graphs for Hopper,
// how pieces are dealt into calls, and that a machine without a device gets a reason and not a crash.
#include <doctest/doctest.h>

#include "kernels/backend.h"
#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/attention_graph.h"

using namespace equipoise::kernels;
using namespace equipoise::kernels::cuda;

namespace {
constexpr int kHopper = 90;
}

TEST_CASE("pieces that share keys go to different backward calls, the others to the first") {
  // Document of keys [0, 200): chunks against [0, 50) and [0, 200). Document [200, 293): against [200, 224),
  // [200, 293).
  const std::vector<Piece> pieces{{0, 50, 0, 50}, {50, 50, 0, 200}, {100, 24, 200, 24}, {124, 23, 200, 93}};
  const auto rounds = disjoint_rounds(pieces);
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].size() == 2);
  CHECK(rounds[0][1].key_begin == 200);
  CHECK(rounds[0][1].keys == 24);
  CHECK(rounds[1].size() == 2);
  CHECK(rounds[1][0].keys == 200);
  CHECK(disjoint_rounds(std::vector<Piece>{{0, 5, 0, 5}, {5, 7, 5, 7}}).size() == 1);
}

TEST_CASE("declared sizes are powers of two, so that similar calls share a plan") {
  const DeclaredAttention declared = declared_for({128, 8, 2}, Pass::forward, 5, 300, 1000, 1500, 5000);
  CHECK(declared.pieces == 8);
  CHECK(declared.most_queries == 512);
  CHECK(declared.most_keys == 1024);
  CHECK(declared.total_queries == 2048);
  CHECK(declared.total_keys == 8192);
  CHECK(declared_for({64, 1, 1}, Pass::forward, 1, 1, 1, 1, 1).most_queries == 128);
}

TEST_CASE("cuDNN accepts our packed causal attention on Hopper, forward and backward") {
  for (const AttentionShape& shape :
       {AttentionShape{64, 1, 1}, AttentionShape{64, 14, 2}, AttentionShape{128, 8, 1},
        AttentionShape{128, 32, 32}, AttentionShape{128, 32, 8}}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::int64_t keys : {128, 4096, 262144}) {
        CAPTURE(shape.head_dim);
        CAPTURE(shape.query_heads);
        CAPTURE(keys);
        AttentionGraph graph(declared_for(shape, pass, 7, 100, keys, 700, 7 * keys), kHopper);
        CHECK(graph.validate() == "");
      }
    }
  }
}

TEST_CASE("cuDNN's validation is a test that can fail: query heads must be a multiple of KV heads") {
  AttentionGraph graph(declared_for({128, 8, 3}, Pass::forward, 1, 128, 128, 128, 128), kHopper);
  CHECK(graph.validate() != "");
}

TEST_CASE("without a device the CUDA backend is absent and says why") {
  std::string reason;
  if (make_cuda_backend(reason) == nullptr) CHECK_FALSE(reason.empty());
}
