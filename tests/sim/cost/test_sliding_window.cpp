// Layers that see a window only: pairs, FLOPs, time, and what of the K and V that CP sends is of use.
#include <doctest/doctest.h>

#include "sim/cost/micro_batch_cost.h"
#include "sim/cost/policy_costs.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

ModelShape windowed(std::int64_t window, int every_full = 0) {
  ModelShape m = builtin_model("llama3.1-8b");
  m.sliding_window = window;
  for (int i = 0; every_full > 0 && i < m.layers; ++i) m.sliding_layers.push_back((i + 1) % every_full != 0);
  return m;
}

}  // namespace

TEST_CASE("Causal pairs inside a window, counted one by one") {
  for (int queries = 0; queries <= 12; ++queries)
    for (int before = 0; before <= 12; ++before)
      for (int window = 0; window <= 14; ++window) {
        int pairs = 0;
        for (int q = 0; q < queries; ++q)
          for (int k = 0; k <= before + q; ++k) pairs += window == 0 || before + q - k < window;
        REQUIRE(causal_pairs(queries, before, window) == pairs);
      }
}

TEST_CASE("Training FLOPs count a sliding layer's pairs inside its window") {
  ModelShape m = model_of(3);
  const double full = m.training_flops(100, 5050);
  m.sliding_window = 10;
  m.sliding_layers = {true, false, true};
  // 100 queries that see up to 10 keys: 55 + 90 x 10 = 955 pairs. A layer: 3 x 2 x (32 + 32) x 2 heads.
  CHECK(causal_pairs(100, 0, 10) == 955);
  CHECK(full - m.training_flops(100, 5050, 955) == 3 * 2 * 64 * 2 * 2 * (5050.0 - 955.0));
}

TEST_CASE("A window as long as the documents changes nothing, a shorter one makes them faster") {
  const MicroBatch micro_batch = documents({30000, 2768});
  const Models full(builtin_model("llama3.1-8b"), Layout{});
  const MicroBatchCost plain = cost_of(full, micro_batch);
  Picoseconds last = plain.forward[0].local[0];
  const Models wide(windowed(30000), Layout{});
  const MicroBatchCost same = cost_of(wide, micro_batch);
  CHECK(same.forward[2].local == plain.forward[0].local);
  CHECK(same.backward[2].local == plain.backward[0].local);
  for (const std::int64_t window : {16384, 4096, 1024, 128}) {
    CAPTURE(window);
    const Models narrow(windowed(window), Layout{});
    const MicroBatchCost cost = cost_of(narrow, micro_batch);
    CHECK(cost.forward[2].local[0] < last);
    last = cost.forward[2].local[0];
    RangeUse use;
    const QueryKeys piece{30000, 30000};
    CHECK(narrow.costs.attention.forward({&piece, 1}, use, window).flops ==
          doctest::Approx(4.0 * 32 * 128 * causal_pairs(30000, 0, static_cast<double>(window))));
  }
  // Far below the document's length the time goes with the window and the length, not with its square.
  const Models narrow(windowed(1024), Layout{});
  const auto attention = [&](std::int64_t length) {
    RangeUse use;
    const QueryKeys piece{length, length};
    return to_seconds(narrow.costs.attention.forward({&piece, 1}, use, 1024).duration);
  };
  CHECK(attention(131072) / attention(65536) == doctest::Approx(2).epsilon(0.02));
  // Against full attention it saves what the pairs outside the window cost, but for the blocks at its edges.
  RangeUse use;
  const QueryKeys piece{131072, 131072};
  const double share = to_seconds(narrow.costs.attention.forward({&piece, 1}, use, 8192).duration) /
                       to_seconds(narrow.costs.attention.forward({&piece, 1}, use).duration);
  const double pairs = causal_pairs(131072, 0, 8192) / causal_pairs(131072, 0);
  CHECK(share >= pairs);
  CHECK(share <= 1.1 * pairs);
}

TEST_CASE("Of alternating layers each kind costs its own, and the model's work is their sum") {
  const MicroBatch micro_batch = documents({32768});
  const Models all(builtin_model("llama3.1-8b"), Layout{}), sliding(windowed(4096), Layout{}),
      half(windowed(4096, 2), Layout{});
  const MicroBatchCost cost = cost_of(half, micro_batch);
  CHECK(cost.forward[0].local == cost_of(all, micro_batch).forward[0].local);
  CHECK(cost.forward[2].local == cost_of(sliding, micro_batch).forward[2].local);
  CHECK(half.costs.layer_counts() == LayerCounts{16, 0, 16, 0});
  const auto work = [](const Models& models, std::int64_t length) {
    const std::int64_t lengths[] = {length};
    double seconds = 0;
    ProfiledWorkload(models.costs, 131072).of(lengths, {&seconds, 1});
    return seconds;
  };
  CHECK(work(half, 65536) == doctest::Approx((work(all, 65536) + work(sliding, 65536)) / 2).epsilon(1e-6));
}

TEST_CASE("Of what CP sends a windowed layer uses the window before each rank's own pieces") {
  // One document of 4,096 on two ranks, zig-zag: rank 0 holds [0, 1024) and [3072, 4096), rank 1 the middle.
  Layout layout;
  layout.context = 2;
  const MicroBatch micro_batch = documents({4096});
  const Models full(builtin_model("llama3.1-8b"), layout), narrow(windowed(101), layout),
      half(windowed(101, 2), layout);
  const MicroBatchCost plain = cost_of(full, micro_batch);
  CHECK(plain.kv_sent_tokens == 4096);
  CHECK(plain.kv_useful_tokens == 2048 + 1024);  // rank 0 sees rank 1's half, rank 1 the first quarter
  const MicroBatchCost cost = cost_of(narrow, micro_batch);
  CHECK(cost.kv_sent_tokens == 4096);
  CHECK(cost.kv_useful_tokens == 100 + 100);  // 100 keys before query 3072, 100 before query 1024
  CHECK(cost_of(half, micro_batch).kv_useful_tokens == (2048 + 1024 + 100 + 100) / 2);
}

TEST_CASE("A dependent chunk gathers no more of the chunks before it than its window reaches") {
  Layout layout;
  layout.context = 2;
  MicroBatch chunk;
  chunk.slices = {{0, 65536, 73728}};
  chunk.chunk = {0, 8, 9, 0};
  const MicroBatchCost all = cost_of(Models(builtin_model("llama3.1-8b"), layout), chunk);
  const MicroBatchCost near = cost_of(Models(windowed(1025), layout), chunk);
  CHECK(all.kv_sent_tokens == 8192 + 65536);
  CHECK(near.kv_sent_tokens == 8192 + 1024);
  CHECK(near.forward[2].comm[0] < all.forward[0].comm[0]);
}
