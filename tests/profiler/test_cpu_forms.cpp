#include <doctest/doctest.h>

#include "policies/base/random.h"
#include "profiler/profile/cpu_forms.h"

using namespace equipoise;

TEST_CASE("blocked work counts the pairs that the loops compute") {
  // 100 queries on 130 keys: the first query sees 31 keys. Tile 0: rows 0..63, ends at key 30 + 64 = 94,
  // computed up to 96: 64 * 96 = 6144 pairs over ceil(94 / 64) = 2 blocks. Tile 1: 36 rows, ends at 130,
  // computed up to 144: 5184 pairs over 3 blocks. Row-blocks: 64 * 2 + 36 * 3 = 236.
  BlockedAttentionWork work;
  work.add_causal(100, 130);
  CHECK(work.pairs == 6144 + 5184);
  CHECK(work.row_blocks == 236);
  CHECK(work.queries == 100);
  CHECK(work.keys == 130);
}

TEST_CASE("the closed form of blocked work equals a count over the tiles") {
  SplitMix64 random(4);
  for (int round = 0; round < 2000; ++round) {
    const auto queries = static_cast<std::int64_t>(1 + random.next() % 700);
    const auto keys = queries + static_cast<std::int64_t>(random.next() % 900);
    CAPTURE(queries);
    CAPTURE(keys);
    BlockedAttentionWork work;
    work.add_causal(queries, keys);
    std::int64_t pairs = 0;
    std::int64_t row_blocks = 0;
    for (std::int64_t begin = 0; begin < queries; begin += 64) {
      const std::int64_t rows = queries - begin < 64 ? queries - begin : 64;
      const std::int64_t seen = keys - queries + begin + rows;
      pairs += rows * ((seen + 15) / 16 * 16);
      row_blocks += rows * ((seen + 63) / 64);
    }
    CHECK(work.pairs == pairs);
    CHECK(work.row_blocks == row_blocks);
  }
}

TEST_CASE("blocked attention adds its parts") {
  // One head of 64, work of pairs 1000, row-blocks 10, 20 queries, 30 keys; parameters in ns:
  // pairs 1000 * (1 + 4 / 2) = 3000, row-blocks 10 * 5 = 50, queries 20 * 8 / 2 = 80; two query heads double
  // them. Keys 30 * 6 / 2 = 90 for the one KV head. Call 1 us = 1000 ns. Sum 1000 + 2 * 3130 + 90 = 7350 ns.
  BlockedAttentionWork work;
  work.pairs = 1000;
  work.row_blocks = 10;
  work.queries = 20;
  work.keys = 30;
  BlockedAttentionParameters fit;
  fit.call_us = 1;
  fit.pair_ns_per_128 = 4;
  fit.pair_ns = 1;
  fit.row_block_ns = 5;
  fit.query_ns_per_128 = 8;
  fit.key_ns_per_128 = 6;
  CHECK(attention_seconds(fit, {64, 2, 1}, work) == doctest::Approx(7350e-9));
  // Q and the output have 2 * 64 elements a query and head, K and V a key: 2 * 64 * (20 * 2 + 30) of 4 bytes
  // are 35,840. A cache of that size serves half of it: queries 8 + 16 / 2 = 16 instead of 8, so 160 ns more
  // over both heads; keys 6 + 12 / 2 = 12 instead of 6, so 90 more.
  fit.cache_MB = 0.03584;
  fit.query_far_ns_per_128 = 16;
  fit.key_far_ns_per_128 = 12;
  CHECK(attention_seconds(fit, {64, 2, 1}, work) == doctest::Approx(7600e-9));
}

TEST_CASE("a packed GEMM adds its arithmetic and its three matrices") {
  // 10 x 20 x 30 at 2 GFLOP/s: 12000 flops in 6000 ns; A 300 * 1, B 600 * 2, C 200 * 3 ns; call 0.5 us.
  CHECK(gemm_seconds(PanelGemmParameters{0.5, 2, 1, 2, 3}, 10, 20, 30) ==
        doctest::Approx((500 + 6000 + 300 + 1200 + 600) * 1e-9));
  // All three have 1,100 elements, 4,400 bytes. A cache of that size serves half of them: of the far rates 2,
  // 4 and 6 ns half is paid, 300 + 1200 + 600.
  CHECK(gemm_seconds(PanelGemmParameters{0.5, 2, 1, 2, 3, 2, 4, 6, 0.0044}, 10, 20, 30) ==
        doctest::Approx((8600 + 2100) * 1e-9));
  // Twice each size is four times the bytes:
  const double far = 256.0 / 257;  // 4^4 / (1 + 4^4)
  CHECK(gemm_seconds(PanelGemmParameters{0.5, 2, 1, 2, 3, 2, 4, 6, 0.0044}, 20, 40, 60) ==
        doctest::Approx((500 + 8 * 6000 + 4 * 2100 + 4 * 4200 * far) * 1e-9));
}
