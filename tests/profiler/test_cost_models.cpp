// The forms by hand: what a tile, a wave, a byte and a hop cost must follow from the parameters.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/dense_kernels.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

constexpr double kEndless = 1e18;  // a bandwidth that costs nothing

template <class Call>
std::string user_error_of(const Call& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST_CASE("every shipped profile loads and builds all of its models") {
  const std::vector<std::string> names = shipped_profiles();
  CHECK(names.size() >= 2);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Profile profile = Profile::load(name);
    CHECK(profile.name() == name);
    const AttentionModel attention(profile, {128, 8, 8});
    const GemmModel gemm(profile, Precision::bf16);
    const ElementwiseModel elementwise(profile);
    RangeUse use;
    const std::vector<QueryKeys> pieces{{1000, 1000}, {10, 500}};
    CHECK(attention.forward_seconds(pieces, use) > 0);
    CHECK(attention.backward_seconds(pieces, use) > attention.forward_seconds(pieces, use));
    CHECK(gemm.seconds(1024, 1024, 1024, use) > 0);
    CHECK(elementwise.seconds(Elementwise::copy, 1e6, use) > 0);
    CHECK(use.calls == 5);
  }
}

TEST_CASE("causal blocks of a tiled call are counted as drawn") {
  // 300 queries at the end of 400 keys, prefix 100. Tiles end at keys 228, 356, 400: 4, 6 and 7 blocks of 64.
  AttentionWork work;
  work.add_causal(300, 400);
  CHECK(work.tiles == 3);
  CHECK(work.blocks == 17);
  CHECK(work.longest == 7);
  for (std::int64_t queries = 1; queries < 700; queries += 37)
    for (std::int64_t prefix = 0; prefix < 600; prefix += 53) {
      AttentionWork fast;
      fast.add_causal(queries, queries + prefix);
      AttentionWork slow;  // a window as wide as the document is no window
      slow.add_window(queries, queries + prefix, queries + prefix);
      CHECK(fast.tiles == slow.tiles);
      CHECK(fast.blocks == slow.blocks);
      CHECK(fast.longest == slow.longest);
      CHECK(fast.masked_tiles == slow.masked_tiles);
    }
}

TEST_CASE("a causal call is counted as its pieces are, one after another") {
  std::vector<QueryKeys> pieces;
  for (std::int64_t queries = 0; queries < 700; queries += 37)
    for (std::int64_t prefix = 0; prefix < 600; prefix += 53) {
      pieces.push_back({queries, queries + prefix});
      AttentionCall each;
      for (const QueryKeys& piece : pieces) each.add_causal(piece.queries, piece.keys);
      const AttentionCall all = count_call(pieces, 0);
      const auto same = [](const AttentionWork& a, const AttentionWork& b) {
        return a.pieces == b.pieces && a.most_tiles == b.most_tiles && a.tiles == b.tiles &&
               a.masked_tiles == b.masked_tiles && a.blocks == b.blocks && a.longest == b.longest &&
               a.query_tokens == b.query_tokens && a.key_tokens == b.key_tokens;
      };
      REQUIRE(same(all.work, each.work));
      REQUIRE(same(all.backward, each.backward));
      REQUIRE(all.fewest_queries == each.fewest_queries);
      REQUIRE(all.most_keys == each.most_keys);
    }
}

// A tile of 128 keys meets blocks of 64 queries; `window` as wide as the keys is none.
AttentionWork drawn_backward(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  AttentionWork work;
  for (std::int64_t tile = 0; tile * 128 < keys; ++tile) {
    std::int64_t first = -1, last = -1;  // blocks of queries that see some key of the tile
    for (std::int64_t query = 0; query < queries; ++query) {
      const std::int64_t own = keys - queries + query;
      if (own < tile * 128 || own - window + 1 > std::min(tile * 128 + 127, keys - 1)) continue;
      if (first < 0) first = query / 64;
      last = query / 64;
    }
    const std::int64_t row = first < 0 ? 0 : last - first + 1;
    work.tiles += 1;
    work.blocks += row;
    work.longest = std::max(work.longest, row);
  }
  return work;
}

TEST_CASE("backward's tiles are of keys, and meet the blocks of queries that see some of them") {
  for (const std::int64_t queries : {1, 50, 64, 100, 128, 300, 641})
    for (const std::int64_t prefix : {0, 1, 60, 64, 100, 127, 128, 200, 1000})
      for (const std::int64_t window : {0, 90, 128, 400}) {
        CAPTURE(queries);
        CAPTURE(prefix);
        CAPTURE(window);
        const QueryKeys piece{queries, queries + prefix};
        const AttentionWork counted =
            attention_work({true, window}, DocumentMask::varlen, {&piece, 1}, AttentionPass::backward);
        const AttentionWork drawn = drawn_backward(queries, piece.keys, window == 0 ? piece.keys : window);
        CHECK(counted.tiles == drawn.tiles);
        CHECK(counted.blocks == drawn.blocks);
        CHECK(counted.longest == drawn.longest);
        CHECK(counted.masked_tiles * 128 >= queries);  // what least_attention_seconds asks for
      }
  // A whole document costs what it costs forward.
  AttentionWork forward, backward;
  forward.add_causal(1024, 1024);
  backward.add_causal_backward(1024, 1024);
  CHECK(backward.tiles == forward.tiles);
  CHECK(backward.blocks == forward.blocks);
}

TEST_CASE("a padded grid has as many tiles for each piece as for the longest, and pays for empty ones") {
  AttentionWork work;
  work.add_causal(1000, 1000);
  work.add_causal(100, 500);
  CHECK(work.empty_tiles() == 7);
  AttentionParameters fit;
  fit.block_us_per_128 = 1;
  fit.memory_GBps = kEndless;
  const double without = attention_seconds(fit, {128, 2, 2}, 1, work);
  fit.empty_tile_us = 0.5;
  CHECK(attention_seconds(fit, {128, 2, 2}, 1, work) == doctest::Approx(without + 7e-6));
}

// Blocks of 128 x 128 that some pair of `documents` falls into; `cut`: those with a pair that is masked.
AttentionWork drawn_blocks(std::span<const QueryKeys> documents) {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (const QueryKeys& document : documents) {
    queries += document.queries;
    keys += document.keys;
  }
  const std::int64_t columns = (keys + 127) / 128;
  std::vector<std::int64_t> pairs(static_cast<std::size_t>((queries + 127) / 128 * columns));
  std::int64_t row = 0;
  std::int64_t first_key = 0;
  for (const QueryKeys& document : documents) {
    for (std::int64_t q = 0; q < document.queries; ++q, ++row)
      for (std::int64_t k = 0; k <= document.keys - document.queries + q; ++k)
        pairs[static_cast<std::size_t>(row / 128 * columns + (first_key + k) / 128)] += 1;
    first_key += document.keys;
  }
  AttentionWork work;
  work.tiles = (queries + 127) / 128;
  for (std::int64_t tile = 0; tile < work.tiles; ++tile) {
    std::int64_t blocks = 0;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t seen = pairs[static_cast<std::size_t>(tile * columns + column)];
      blocks += seen > 0 ? 2 : 0;
      work.masked_tiles += seen > 0 && seen < std::int64_t{128} * 128 ? 1 : 0;
    }
    work.blocks += blocks;
    work.longest = std::max(work.longest, blocks);
  }
  return work;
}

TEST_CASE("a block mask counts the blocks that some document touches, and those it cuts") {
  SplitMix64 random(5);
  const auto up_to = [&random](std::uint64_t most) {
    return static_cast<std::int64_t>(random.next() % most);
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<QueryKeys> documents;
    for (std::int64_t i = 0; i <= up_to(6); ++i) {
      const std::int64_t whole = round % 3 == 0 ? 128 * (1 + up_to(3)) : 1 + up_to(500);
      documents.push_back({whole, whole + (round % 2 == 0 ? 0 : up_to(400))});
    }
    const AttentionWork counted = attention_work({}, DocumentMask::block_mask, documents);
    const AttentionWork drawn = drawn_blocks(documents);
    CHECK(counted.tiles == drawn.tiles);
    CHECK(counted.blocks == drawn.blocks);
    CHECK(counted.longest == drawn.longest);
    CHECK(counted.masked_tiles == drawn.masked_tiles);
  }
}

TEST_CASE("a dense mask computes the whole square of a packed call") {
  const std::vector<QueryKeys> documents{{100, 100}, {28, 60}, {0, 7}};
  const AttentionWork work = attention_work({}, DocumentMask::dense_mask, documents);
  CHECK(work.tiles == 1);   // 128 queries
  CHECK(work.blocks == 3);  // 160 keys
  CHECK(work.masked_tiles == 0);
  CHECK(work.query_tokens == 128);
  CHECK(work.key_tokens == 160);
}

TEST_CASE("rows of a padded batch are sequences of their own under a mask") {
  // Three rows of 256: a dense mask computes three squares of 2 tiles x 4 blocks, not one of 6 x 12.
  const std::vector<QueryKeys> rows(3, QueryKeys{256, 256, true});
  const std::vector<QueryKeys> packed(3, QueryKeys{256, 256});
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    CHECK(attention_work({}, DocumentMask::dense_mask, rows, pass).blocks == 3 * 2 * 4);
    CHECK(attention_work({}, DocumentMask::dense_mask, packed, pass).blocks == 6 * 12);
  }
  // Rows of 100 begin a block of their own, where packed documents share one.
  const std::vector<QueryKeys> short_rows(2, QueryKeys{100, 100, true});
  CHECK(attention_work({}, DocumentMask::block_mask, short_rows).tiles == 2);
  CHECK(attention_work({}, DocumentMask::block_mask, short_rows).blocks == 2 * 2);
  // Documents with tiles of their own cost the same either way.
  CHECK(attention_work({}, DocumentMask::varlen, rows).blocks ==
        attention_work({}, DocumentMask::varlen, packed).blocks);
}

TEST_CASE("a kernel of rectangles computes all of each document's, and nothing between documents") {
  const std::vector<QueryKeys> documents{{256, 256}, {128, 384}};
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const AttentionWork work = attention_work({}, DocumentMask::rectangles, documents, pass);
    CHECK(work.blocks == 2 * 4 + (pass == AttentionPass::forward ? 6 : 3 * 2));  // of 64 keys, or queries
    CHECK(work.masked_tiles == 0);
    CHECK_FALSE(work.second_call);
  }
}

TEST_CASE("a square-causal kernel computes whole rectangles where one document has fewer queries than keys") {
  const auto backward = [](DocumentMask apart, const std::vector<QueryKeys>& documents) {
    return attention_work({}, apart, documents, AttentionPass::backward);
  };
  const std::vector<QueryKeys> squares{{300, 300}, {128, 128}};
  CHECK(backward(DocumentMask::square_causal, squares).blocks ==
        backward(DocumentMask::varlen, squares).blocks);
  CHECK(backward(DocumentMask::square_causal, {{300, 300}, {0, 7}}).masked_tiles ==
        3);  // no query, no rectangle
  const AttentionWork whole = backward(DocumentMask::square_causal, {{128, 128}, {128, 384}});
  CHECK(whole.tiles == 4);   // of 128 keys
  CHECK(whole.blocks == 8);  // of 64 queries, two a tile
  CHECK(whole.masked_tiles == 0);
  AttentionParameters fit;
  fit.block_us_per_128 = 1;
  fit.memory_GBps = 1e9;
  const double once = attention_seconds(fit, {128, 1, 1}, 132, whole);
  fit.second_call_us = 50;  // two pieces may share keys: two calls
  CHECK(attention_seconds(fit, {128, 1, 1}, 132, whole) == doctest::Approx(once + 50e-6));
  CHECK(attention_seconds(fit, {128, 1, 1}, 132, backward(DocumentMask::square_causal, squares)) < 40e-6);
  const AttentionWork full =
      attention_work({false, 0}, DocumentMask::square_causal, squares, AttentionPass::backward);
  CHECK(attention_seconds(fit, {128, 1, 1}, 132, full) < 40e-6);  // one mask, one call
}

TEST_CASE("an attention call is its tiles over the SMs joined with its longest tile") {
  AttentionParameters fit;
  fit.launch_us = 10;
  fit.block_us_per_128 = 1;  // a block of 128 keys at head dim 128 takes 1 us
  fit.imbalance_power = 2;
  fit.memory_GBps = kEndless;
  const AttentionHeads heads{128, 4, 4};
  AttentionWork work;
  work.add_causal(128, 128);
  // Each of 4 heads has one tile of 1 us: 4 us over 4 SMs = 1 us. The longest tile in addition to its share
  // of the mean: 1 * (1 - 1/4) = 0.75. sqrt(1 + 0.5625) = 1.25, and 10 of launch.
  CHECK(attention_seconds(fit, heads, 4, work) == doctest::Approx(11.25e-6).epsilon(1e-9));
  // On one SM the work is the time: 4 us.
  CHECK(attention_seconds(fit, heads, 1, work) == doctest::Approx(14e-6).epsilon(1e-9));
  // Flat below one tile of queries; a whole tile more beyond it.
  for (const std::int64_t queries : {1, 7, 64, 127}) {
    AttentionWork few;
    few.add_causal(queries, 128);
    CHECK(attention_seconds(fit, heads, 1, few) == doctest::Approx(14e-6).epsilon(1e-9));
  }
  AttentionWork more;
  more.add_causal(129, 129);  // tiles of 2 and 3 blocks of 64: 2.5 us a head
  CHECK(attention_seconds(fit, heads, 1, more) == doctest::Approx(20e-6).epsilon(1e-9));
  // Bytes: 128 queries in and out at 4 heads, 128 keys and values at 4 heads, 128 dims, bf16: 4 * 131,072
  // bytes.
  fit.memory_GBps = 524.288 / 3;  // so they take 3 us next to 4 of work: sqrt(9 + 16) = 5
  CHECK(attention_seconds(fit, heads, 1, work) == doctest::Approx(15e-6).epsilon(1e-9));
  CHECK(attention_seconds(fit, heads, 1, AttentionWork{}) >= 0);
}

TEST_CASE("an elementwise op runs at the cache's rate, at the memory's, or between them") {
  const ElementwiseParameters fit{10, 1, 1, 4};  // 10 us, 1 GB/s, a cache of 1 MB at 4 GB/s
  // 1 MB: half at 4 GB/s and half at 1: 125 + 500 us.
  CHECK(elementwise_seconds(fit, 1e6) == doctest::Approx(635e-6));
  CHECK(elementwise_seconds(fit, 1e3) == doctest::Approx(10.25e-6).epsilon(1e-5));
  CHECK(elementwise_seconds(fit, 1e9) == doctest::Approx(1).epsilon(1e-4));
  CHECK(elementwise_seconds({10, 1}, 1e3) == doctest::Approx(11e-6));  // no cache: memory
  // 2 MB at power 4: 1 / (1 + 16) of them at 4 GB/s: 2000 - 2000 * 3/4 / 17 us; at power 2 a fifth: 2000 -
  // 300.
  CHECK(elementwise_seconds({10, 1, 1, 4, 4}, 2e6) == doctest::Approx((2010 - 1500.0 / 17) * 1e-6));
  CHECK(elementwise_seconds(fit, 2e6) == doctest::Approx(1710e-6));
}

TEST_CASE("short queries over long keys cost more a pair than square ones") {
  const Profile profile = Profile::load("h100-sxm");
  const AttentionModel model(profile, {128, 32, 8});
  RangeUse use;
  // 8 documents of 16 queries over 8,192 keys and one square of 1,425: about a million pairs each.
  const std::vector<QueryKeys> thin(8, QueryKeys{16, 8192});
  const std::vector<QueryKeys> square{{1425, 1425}};
  CHECK(model.forward_seconds(thin, use) > 1.3 * model.forward_seconds(square, use));
  CHECK(model.forward_seconds(std::vector<QueryKeys>{}, use) == 0);
  CHECK(use.calls == 2);
}

TEST_CASE("a square-causal kernel's call is priced from its counts as from its pieces") {
  const AttentionModel model(Profile::load("h100-sxm"), {128, 8, 8}, "cudnn");
  REQUIRE(model.prices_counts());
  const std::vector<QueryKeys> squares{{300, 300}, {128, 128}, {0, 7}}, one_rectangle{{128, 384}},
      rectangles{{300, 300}, {128, 384}, {70, 1000}};
  for (const std::vector<QueryKeys>& pieces : {squares, one_rectangle, rectangles})
    for (const std::int64_t window : {0, 256}) {
      RangeUse counted, as_pieces;
      CHECK(model.backward_seconds(count_call(pieces, window), counted) ==
            model.backward_seconds(pieces, as_pieces, window));
      CHECK(counted.seconds == as_pieces.seconds);
    }
  RangeUse use;
  CHECK(model.backward_seconds(count_call(rectangles, 0).repeated(2), use) ==
        model.backward_seconds(
            std::vector<QueryKeys>{{300, 300}, {128, 384}, {70, 1000}, {300, 300}, {128, 384}, {70, 1000}},
            use));
}

TEST_CASE("one call over many documents is cheaper than a call each") {
  const Profile profile = Profile::load("h200-sxm");
  const AttentionModel model(profile, {128, 4, 1});
  RangeUse use;
  const std::vector<QueryKeys> together(64, QueryKeys{300, 300});
  const std::vector<QueryKeys> one{{300, 300}};
  CHECK(model.forward_seconds(together, use) < 64 * model.forward_seconds(one, use));
  CHECK(model.forward_seconds(together, use) > model.forward_seconds(one, use));
}

TEST_CASE("a product takes whole waves of tiles") {
  GemmParameters fit;
  fit.launch_us = 1;
  fit.memory_GBps = kEndless;
  fit.wave_blend = 1;  // rigid waves
  fit.power_half_gflop = 1;
  fit.split_us = 1e9;  // never split k
  // A 256x128 tile over k = 1000 is 65.536 MFLOP; at 65.536 TFLOP/s of 2 SMs, one SM needs 2 us. Other shapes
  // are too slow to be chosen.
  fit.tile_tflops = {65.536, 1e-3, 1e-3, 1e-3, 1e-3};
  CHECK(gemm_seconds(fit, 2, 256, 128, 1000) == doctest::Approx(3e-6).epsilon(1e-9));  // 1 tile, 1 wave
  CHECK(gemm_seconds(fit, 2, 257, 128, 1000) ==
        doctest::Approx(3e-6).epsilon(1e-9));  // 2 tiles, lying or not
  CHECK(gemm_seconds(fit, 2, 513, 128, 1000) == doctest::Approx(5e-6).epsilon(1e-9));   // 3 tiles, 2 waves
  CHECK(gemm_seconds(fit, 2, 1024, 128, 1000) == doctest::Approx(5e-6).epsilon(1e-9));  // 4 tiles, 2 waves
  fit.wave_blend = 0;  // no quantisation: 3 tiles on 2 SMs are 1.5 waves
  CHECK(gemm_seconds(fit, 2, 513, 128, 1000) == doctest::Approx(4e-6).epsilon(1e-9));
  // Bytes alone: (256 + 128) * 1000 * 2 + 256 * 128 * 2 = 833,536 at 833.536 GB/s are 1 us.
  fit.tile_tflops = {1e9, 1e9, 1e9, 1e9, 1e9};
  fit.memory_GBps = 833.536;
  CHECK(gemm_seconds(fit, 2, 256, 128, 1000) == doctest::Approx(2e-6).epsilon(1e-6));
  // A result that is added to fp32 sums is read and written: 8 bytes for 2, 196,608 more, of three products
  // thrice.
  CHECK(gemm_seconds(GemmForm(fit, 2), 256, 128, 1000, 1, 8) ==
        doctest::Approx((1 + 1'030'144 / 833'536.0) * 1e-6).epsilon(1e-6));
  CHECK(gemm_seconds(GemmForm(fit, 2), 256, 128, 1000, 3, 8) ==
        doctest::Approx((1 + 3 * 1'030'144 / 833'536.0) * 1e-6).epsilon(1e-6));
}

TEST_CASE("products grow with every size, to a million tokens") {
  const Profile profile = Profile::load("h100-sxm");
  const GemmModel model(profile, Precision::bf16);
  RangeUse use;
  CHECK(model.seconds(0, 4096, 4096, use) == 0);
  CHECK(use.calls == 0);
  double before = 0;
  for (std::int64_t m = 256; m <= 1 << 20; m *= 2) {
    const double now = model.seconds(m, 4096, 4096, use);
    CHECK(now > before);
    before = now;
  }
  CHECK(use.beyond_samples == 6);  // 256, and 64K to 1M; the samples have 512 to 32,768 rows
  // Far out, twice the rows take twice the time.
  CHECK(model.seconds(1 << 20, 4096, 4096, use) / model.seconds(1 << 19, 4096, 4096, use) ==
        doctest::Approx(2).epsilon(0.02));
  // FP8 is faster, and not by more than its peak.
  const GemmModel eight(profile, Precision::fp8);
  const double ratio = model.seconds(8192, 8192, 8192, use) / eight.seconds(8192, 8192, 8192, use);
  CHECK(ratio > 1.3);
  CHECK(ratio < 2);
}

TEST_CASE("under full load a small product finds the clock of a large one, in fp8 at most that of bf16") {
  const Profile profile = Profile::load("h100-sxm");
  RangeUse use;
  const auto slower = [&](Precision precision, std::int64_t size) {
    return GemmModel(profile, precision, {}, Load::full).seconds(size, size, size, use) /
           GemmModel(profile, precision).seconds(size, size, size, use);
  };
  const double loss = profile.table("gemm")["bf16"]["parameters"]["power_loss"];
  CHECK(slower(Precision::bf16, 4096) > 1 + 0.5 * loss);
  CHECK(slower(Precision::bf16, 32768) < 1.01);
  CHECK(slower(Precision::fp8, 4096) > 1 + 0.5 * loss);
  CHECK(slower(Precision::fp8, 4096) <= 1 + loss);
}

TEST_CASE("a derived table has no samples, so every call to it is beyond them") {
  const Profile profile = Profile::load("h100-sxm");
  RangeUse use;
  // The H200's table is derived from this one, whose samples hold this shape.
  const double plain = GemmModel(profile, Precision::bf16).seconds(2048, 4096, 4096, use);
  CHECK(use.beyond_samples == 0);
  CHECK(use.derived == 0);
  CHECK(GemmModel(Profile::load("h200-sxm"), Precision::bf16).seconds(2048, 4096, 4096, use) <= plain);
  CHECK(use.beyond_samples == 1);
  CHECK(use.derived == 1);
  const ElementwiseModel elementwise(profile);
  (void)elementwise.seconds(Elementwise::residual_add, 1e8, use);  // published
  CHECK(use.derived == 1);
  (void)elementwise.seconds(Elementwise::copy, 1e8, use);  // a rule
  CHECK(use.derived == 2);
  const CollectiveModel collectives(profile, {});
  (void)collectives.seconds(Collective::all_gather, 1e8, {8, 8}, use);  // published
  CHECK(use.derived == 2);
  // All-to-all has samples of shorter messages.
  (void)collectives.seconds(Collective::all_to_all, 1e9, {8, 8}, use);
  (void)collectives.seconds(Collective::all_to_all, 1e9, {16, 8}, use);
  CHECK(use.derived == 2);
  CHECK(use.beyond_samples == 4);
  CHECK(use.calls == 7);
  RangeUse sum = use;
  sum += use;
  CHECK(sum.derived == 4);
}

TEST_CASE("what lies beyond the samples is counted by time, too") {
  const Profile profile = Profile::load("h100-sxm");
  const GemmModel gemm(profile, Precision::bf16);
  RangeUse use;
  const double within = gemm.seconds(2048, 4096, 4096, use);
  CHECK(use.seconds == within);
  CHECK(use.beyond_seconds == 0);
  const double beyond = gemm.seconds(65536, 4096, 4096, use);  // the samples end at 32,768 rows
  CHECK(use.seconds == within + beyond);
  CHECK(use.beyond_seconds == beyond);
  const AttentionModel attention(profile, {128, 8, 8});
  const std::vector<QueryKeys> pieces{{65536, 65536}};  // and at 32,768 keys
  const double attended = attention.forward_seconds(pieces, use);
  CHECK(use.beyond_seconds == beyond + attended);
  RangeUse layers;
  layers.add(use, 3);  // predicted once, run three times
  CHECK(layers.calls == use.calls);
  CHECK(layers.seconds == doctest::Approx(3 * use.seconds));
  CHECK(layers.beyond_seconds == doctest::Approx(3 * use.beyond_seconds));
}

TEST_CASE("calls outside the validity range are refused by name, calls beyond the samples are counted") {
  const Profile profile = Profile::load("h100-sxm");
  const AttentionModel model(profile, {128, 8, 8});
  RangeUse use;
  CHECK(model.forward_seconds(std::vector<QueryKeys>{{1 << 20, 1 << 20}}, use) > 0);
  CHECK(use.beyond_samples == 1);
  const std::string error = user_error_of([&] {
    (void)model.forward_seconds(std::vector<QueryKeys>{{1 << 23, 1 << 23}}, use);
  });
  CHECK(says(error, "h100-sxm"));
  CHECK(says(error, "attention forward"));
  CHECK(says(error, "keys = 8.38861e+06"));
  CHECK(says(user_error_of([&] { const AttentionModel wide(profile, {512, 8, 8}); }), "head_dim = 512"));
  const GemmModel gemm(profile, Precision::bf16);
  CHECK(says(user_error_of([&] { (void)gemm.seconds(1 << 30, 1, 1, use); }), "m = 1.07374e+09"));
  CHECK(says(user_error_of([&] {
               const CollectiveModel model_of(profile, {0, "efa-40"});
             }),
             "did you mean \"efa-400\""));
}

TEST_CASE("a profile of one machine has collectives within a node and refuses wider groups") {
  nlohmann::json file = Profile::load("h100-sxm").json();
  const CollectiveModel wide(Profile(file, "mine.json"), {});
  file["tables"]["collective"].erase("networks");
  file["tables"]["collective"].erase("default_network");
  const Profile one(file, "mine.json");
  const CollectiveModel narrow(one, {50, ""});
  RangeUse use;
  const auto kind = Collective::all_gather;
  CHECK(narrow.seconds(kind, 1e6, {8, 8}, use) == wide.seconds(kind, 1e6, {8, 8}, use));
  const std::string error = user_error_of([&] { (void)narrow.seconds(kind, 1e6, {16, 8}, use); });
  CHECK(says(error, "has no network"));
  CHECK(says(error, "8 of these 16 ranks"));
  CHECK(says(user_error_of([&] { const CollectiveModel named(one, {0, "rail-400"}); }), "networks"));
}

TEST_CASE("a profile that is wrong says where") {
  CHECK(says(user_error_of([] { (void)Profile::load("h100-smx"); }), "h100-sxm"));
  CHECK(says(user_error_of([] { (void)Profile::load("/nowhere/x.json"); }), "/nowhere/x.json"));
  const nlohmann::json good = Profile::load("h100-sxm").json();
  const auto error_of = [](const nlohmann::json& file) {
    return user_error_of([&] {
      const Profile profile(file, "mine.json");
      const AttentionModel attention(profile, {});
      const GemmModel gemm(profile, Precision::bf16);
      const CollectiveModel collective(profile, {});
    });
  };
  CHECK(error_of(good).empty());
  nlohmann::json bad = good;
  bad["schema"] = "equipoise.plan/1";
  CHECK(says(error_of(bad), "equipoise.profile/1"));
  bad = good;
  bad["device"]["smms"] = 1;
  CHECK(says(error_of(bad), "did you mean \"sms\""));
  bad = good;
  bad["device"]["sms"] = -132;
  CHECK(says(error_of(bad), "mine.json: device.sms: expected a number > 0, found -132"));
  bad = good;
  bad["tables"]["gemm"]["bf16"]["parameters"]["memory_GBps"] = 0;
  CHECK(says(error_of(bad), "tables.gemm.bf16.parameters.memory_GBps"));
  bad = good;
  bad["tables"]["attention"]["default"] = "none";
  CHECK(says(error_of(bad), "kernels.none"));
  bad = good;
  bad["tables"].erase("gemm");
  CHECK(says(error_of(bad), "no gemm table"));
  bad = good;
  bad["tables"]["gemm"]["bf16"]["ranges"]["m"]["allowed"] = {10, 1};
  CHECK(says(error_of(bad), "low <= high"));
  bad = good;
  bad["tables"]["collective"]["networks"]["rail-400"]["all_to_all"] = "deepep";  // no way of NCCL's
  CHECK(says(error_of(bad),
             "mine.json: tables.collective.networks.rail-400.all_to_all: expected one of the "
             "profile's (cross-rail, rail-aligned), found \"deepep\""));
  bad = good;
  bad["tables"]["collective"]["exchange"]["deepep"]["parameters"].erase("nvlink_efficiency");
  CHECK(says(error_of(bad), "tables.collective.exchange.deepep.parameters.nvlink_efficiency"));
}

}  // namespace
}  // namespace equipoise
