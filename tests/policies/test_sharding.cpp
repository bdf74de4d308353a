// Sharding rules against hand-derived cases. Token t of a document sees t + 1 keys.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/sharding/sharding.h"
#include "policies/workload.h"
#include "tests/policies/sharding_cases.h"

using namespace equipoise;
using equipoise::test::micro_batch_of;

namespace {

using Triple = std::array<std::int64_t, 3>;  // slice, q_begin, q_end

Sharding shard(std::string_view policy, const MicroBatch& batch, int ranks, const ShardOptions& options = {},
               const AttentionCost& cost = TileAttentionCost()) {
  Sharding out;
  sharding_policy(policy).shard(batch, ranks, options, cost, out);
  test::check_invariants(batch, ranks, out);
  return out;
}

std::vector<Triple> segments(const Sharding& sharding, int rank) {
  std::vector<Triple> triples;
  for (const Segment& s : sharding.of_rank(rank)) triples.push_back({s.slice, s.q_begin, s.q_end});
  return triples;
}

std::vector<std::int64_t> pairs(const Sharding& sharding) {
  std::vector<std::int64_t> sums;
  for (int r = 0; r < sharding.ranks(); ++r) {
    std::int64_t sum = 0;
    for (const Segment& s : sharding.of_rank(r)) sum += s.pairs();
    sums.push_back(sum);
  }
  return sums;
}

using Pairs = std::vector<std::int64_t>;
using Triples = std::vector<Triple>;

}  // namespace

TEST_CASE("per-sequence gives two ranks equal pairs on one document") {
  // Chunks of 2 tokens cost 1+2, 3+4, 5+6, 7+8 = 3, 7, 11, 15 pairs; rank 0 has chunks 0 and 3, rank 1 has 1
  // and 2.
  const Sharding s = shard("per-sequence", micro_batch_of({8}), 2);
  CHECK(pairs(s) == Pairs{18, 18});
  CHECK(segments(s, 0) == Triples{{0, 0, 2}, {0, 6, 8}});
  CHECK(segments(s, 1) == Triples{{0, 2, 4}, {0, 4, 6}});  // neighbours, and still never merged
}

TEST_CASE("per-sequence splits a chunk at a document border") {
  // Documents {1, 7}: chunk 0 is token 0 of both (1 + 1 pairs), chunk 1 tokens 1-2 of the second (2 + 3),
  // chunk 2 tokens 3-4 (4 + 5), chunk 3 tokens 5-6 (6 + 7). Rank 0: 2 + 13 = 15, rank 1: 5 + 9 = 14.
  const Sharding s = shard("per-sequence", micro_batch_of({1, 7}), 2);
  CHECK(pairs(s) == Pairs{15, 14});
  CHECK(segments(s, 0) == Triples{{0, 0, 1}, {1, 0, 1}, {1, 5, 7}});
  CHECK(segments(s, 1) == Triples{{1, 1, 3}, {1, 3, 5}});
}

TEST_CASE("per-sequence refuses or pads a length that 2c does not divide") {
  const MicroBatch batch = micro_batch_of({2, 3});
  CHECK_THROWS_WITH_AS(shard("per-sequence", batch, 2),
                       "per-sequence sharding over 2 CP ranks: 5 tokens are not divisible by 4; allowed: a "
                       "multiple of it, or --pad tail",
                       UserError);
  ShardOptions tail;
  tail.pad = Pad::tail;
  // 8 tokens: the last document is computed as 6. Chunks: d0[0,2) | d1[0,2) | d1[2,4) | d1[4,6).
  const Sharding s = shard("per-sequence", batch, 2, tail);
  CHECK(s.padding_tokens == 3);
  CHECK(segments(s, 0) == Triples{{0, 0, 2}, {1, 4, 6}});
  CHECK(segments(s, 1) == Triples{{1, 0, 2}, {1, 2, 4}});
}

TEST_CASE("per-document deals left-over tokens to chunk slots with one running counter") {
  // c = 2, 4 slots. {7, 6}: document 0 has chunks of 1 and 3 tokens over, for slots 0, 1, 2: lengths 2 2 2 1.
  // The counter is at 3: document 1 has chunks of 1 and 2 over, for slots 3 and 0: lengths 2 1 1 2.
  const Sharding s = shard("per-document", micro_batch_of({7, 6}), 2);
  CHECK(segments(s, 0) == Triples{{0, 0, 2}, {1, 0, 2}, {0, 6, 7}, {1, 4, 6}});
  CHECK(segments(s, 1) == Triples{{0, 2, 4}, {1, 2, 3}, {0, 4, 6}, {1, 3, 4}});
  CHECK(s.rank_tokens == Pairs{7, 6});
  // Rank 0: (1+2) + (1+2) + 7 + (5+6) = 24; rank 1: (3+4) + 3 + (5+6) + 4 = 25; together 28 + 21.
  CHECK(pairs(s) == Pairs{24, 25});
}

TEST_CASE("per-document leaves out the chunks of a document shorter than 2c") {
  // {1, 7}: document 0 fills slot 0 only; document 1 has chunks of 1 and 3 over for slots 1, 2, 3.
  const Sharding s = shard("per-document", micro_batch_of({1, 7}), 2);
  CHECK(segments(s, 0) == Triples{{0, 0, 1}, {1, 0, 1}, {1, 5, 7}});
  CHECK(segments(s, 1) == Triples{{1, 1, 3}, {1, 3, 5}});
}

TEST_CASE("per-document, remainder tail: left-over tokens go one by one to the ranks") {
  ShardOptions options;
  options.remainder = Remainder::tail;
  // {7, 6}, c = 2: even chunks of 1 token; tail tokens 4, 5, 6 of document 0 to ranks 0, 1, 0, then tokens 4,
  // 5 of document 1 to ranks 1, 0.
  const Sharding s = shard("per-document", micro_batch_of({7, 6}), 2, options);
  CHECK(segments(s, 0) ==
        Triples{{0, 0, 1}, {1, 0, 1}, {0, 3, 4}, {1, 3, 4}, {0, 4, 5}, {0, 6, 7}, {1, 5, 6}});
  CHECK(segments(s, 1) == Triples{{0, 1, 2}, {1, 1, 2}, {0, 2, 3}, {1, 2, 3}, {0, 5, 6}, {1, 4, 5}});
  CHECK(s.rank_tokens == Pairs{7, 6});
}

TEST_CASE("per-document, remainder pad: every document is rounded up and the padding is computed") {
  ShardOptions options;
  options.remainder = Remainder::pad;
  // {7, 6} become {8, 8}: 18 pairs a rank and document, as in the first case; 1 + 2 tokens are padding.
  const Sharding s = shard("per-document", micro_batch_of({7, 6}), 2, options);
  CHECK(pairs(s) == Pairs{36, 36});
  CHECK(s.rank_tokens == Pairs{8, 8});
  CHECK(s.padding_tokens == 3);
}

TEST_CASE("contiguous and striped, the placements before zig-zag") {
  // Contiguous: 1+2+3+4 and 5+6+7+8. Striped: 1+3+5+7 and 2+4+6+8.
  CHECK(pairs(shard("contiguous", micro_batch_of({8}), 2)) == Pairs{10, 26});
  const Sharding striped = shard("striped", micro_batch_of({8}), 2);
  CHECK(pairs(striped) == Pairs{16, 20});
  CHECK(segments(striped, 1) == Triples{{0, 1, 2}, {0, 3, 4}, {0, 5, 6}, {0, 7, 8}});
  // 7 tokens over 3 ranks: 3, 2, 2.
  CHECK(shard("contiguous", micro_batch_of({2, 5}), 3).rank_tokens == Pairs{3, 2, 2});
  CHECK(segments(shard("contiguous", micro_batch_of({2, 5}), 3), 0) == Triples{{0, 0, 2}, {1, 0, 1}});
  // With one rank nothing is cut.
  CHECK(segments(shard("striped", micro_batch_of({3, 5}), 1), 0) == Triples{{0, 0, 3}, {1, 0, 5}});
}

TEST_CASE("a chunk of a dependent group attends back to the first token of the group") {
  MicroBatch batch;
  batch.slices = {{5, 8, 16}};
  batch.chunk = {5, 1, 2, 0};
  // Chunks of 2 queries behind 8, 10, 12 and 14 keys: 9+10, 11+12, 13+14, 15+16 = 19, 23, 27, 31.
  CHECK(pairs(shard("per-document", batch, 2)) == Pairs{50, 50});
  // The same slice alone sees only itself: the fixture of 8 tokens.
  batch.chunk = {};
  CHECK(pairs(shard("per-document", batch, 2)) == Pairs{18, 18});
}

TEST_CASE("in a padded batch every slice is computed as long as the longest") {
  MicroBatch batch = micro_batch_of({3, 5});
  batch.pad_each_to = 8;
  const Sharding s = shard("per-document", batch, 2);
  CHECK(pairs(s) == Pairs{36, 36});
  CHECK(s.padding_tokens == 8);
  CHECK(s.rank_tokens == Pairs{8, 8});
}

TEST_CASE("a placed slice stays whole on its rank, ahead of the others") {
  MicroBatch batch = micro_batch_of({3, 8});
  batch.placement = {1, kDistributed};
  const Sharding s = shard("per-sequence", batch, 2);
  CHECK(segments(s, 0) == Triples{{1, 0, 2}, {1, 6, 8}});
  CHECK(segments(s, 1) == Triples{{0, 0, 3}, {1, 2, 4}, {1, 4, 6}});
  CHECK(s.rank_local_tokens == Pairs{0, 3});
  CHECK(s.rank_tokens == Pairs{4, 7});
}

TEST_CASE("adaptive takes per-sequence on a tie and the faster rule otherwise") {
  CHECK(shard("adaptive", micro_batch_of({4096}), 2).chosen == "per-sequence");

  // {2, 3, 3}, c = 2, tile 1. Per-sequence: rank 0 has 1 + 2 and 2 + 3 = 8 pairs, rank 1 has 1 + 2, 3 and 1.
  // Per-document: rank 0 has 1, 1, 3 and 3 = 8 pairs in single tokens, rank 1 has 2, 2 and 1 + 2. Both 8.
  ShardOptions single;
  single.tile = 1;
  CHECK(shard("adaptive", micro_batch_of({2, 3, 3}), 2, single, TileAttentionCost(1)).chosen ==
        "per-sequence");

  // {512, 7680}, c = 2, tile 128. Per-sequence, chunks of 2048: the long document's chunks hold its tokens
  // [0, 1536), [1536, 3584), [3584, 5632), [5632, 7680). Per-document halves every document's pairs, and its
  // chunks of 128 and 1920 are whole tiles: 0.5 * total, which is the least there can be. Chunk pairs grow
  // along the document, so per-sequence cannot be equal: rank 0 has 512 tokens less of the long document.
  CHECK(shard("adaptive", micro_batch_of({512, 7680}), 2).chosen == "per-document");

  // 64 documents of 64 tokens, c = 2. Per-sequence keeps them whole: 32 segments a rank, each one tile of 128
  // queries, 128 * 129 / 2 pairs. Per-document cuts each into 4 of 16 tokens: twice the segments, each at
  // least as dear.
  CHECK(shard("adaptive", micro_batch_of(std::vector<std::int64_t>(64, 64)), 2).chosen == "per-sequence");
}

TEST_CASE("adaptive compares with the padded sequence, whatever --pad says") {
  // 5 tokens, c = 2, tile 1: per-sequence would run 8, the last document as 6. Rank 0: d0[0,2) and d1[4,6) =
  // 3 + 5 + 6 = 14 pairs; rank 1: d1[0,2) and d1[2,4) = 3 + 3 + 4 = 10. Per-document: d0 fills slots 0 and 1,
  // d1 slots 2, 3 and 0: rank 0 has 1 + 1 + 3, rank 1 has 2 + 2.
  const Sharding s = shard("adaptive", micro_batch_of({2, 3}), 2, {}, TileAttentionCost(1));
  CHECK(s.chosen == "per-document");
  CHECK(s.padding_tokens == 0);
  // One document of 6, c = 2: as 8, both ranks have 18 pairs. Per-document, chunks of 2, 2, 1, 1: rank 0 has
  // 1 + 2 + 6 = 9, rank 1 has 3 + 4 + 5 = 12.
  CHECK(shard("adaptive", micro_batch_of({6}), 2, {}, TileAttentionCost(1)).chosen == "per-document");
  // With a tile of 4, c = 2, {1, 1, 1, 1, 1}: padded to 8, four chunks of 2. Rank 0 has tokens 0, 1 and the
  // last two of d4's padding, 4 queries behind 2: 10 + 10 + 18 = 38. Per-document, rank 0 has d0, d3 and d4:
  // 30.
  CHECK(shard("adaptive", micro_batch_of({1, 1, 1, 1, 1}), 2, {}, TileAttentionCost(4)).chosen ==
        "per-document");
}

TEST_CASE("the tile cost: pairs of the padded queries under their causal mask, segment by segment") {
  const TileAttentionCost cost(4);
  // 4 queries from the start: 4 * 5 / 2 = 10. 2 queries behind 6 keys are padded to 4: 4 * 6 + 10 = 34.
  const std::vector<Segment> two = {{0, 0, 4, 0}, {0, 6, 8, 0}};
  CHECK(cost.seconds(two) == 44);
  CHECK(cost.seconds({}) == 0);
  // Single tokens of one document are not merged: 4 * 0 + 10, 4 * 2 + 10, 4 * 4 + 10.
  const std::vector<Segment> single = {{0, 0, 1, 0}, {0, 2, 3, 0}, {0, 4, 5, 0}};
  CHECK(cost.seconds(single) == 54);
}

TEST_CASE("striped: every c-th token of a document is one kernel piece with the same pairs") {
  // 8 tokens, c = 2: rank 1 has queries 1, 3, 5, 7 with 2, 4, 6, 8 keys, 5 on average. A block of 4 that ends
  // at K keys sees K - 1.5 on average: K = 6.5, and the pieces of both ranks are rounded down to whole keys.
  using Piece = std::pair<std::int64_t, std::int64_t>;
  std::vector<Piece> pieces;
  const auto add = [&](std::int64_t queries, std::int64_t keys) { pieces.emplace_back(queries, keys); };
  const Sharding striped = shard("striped", micro_batch_of({8}), 2);
  CHECK(striped.pieces.strided);
  for_each_kernel_piece(striped.of_rank(1), striped.pieces.strided, add);
  CHECK(pieces == std::vector<Piece>{{4, 6}});
  // c = 3, 9 tokens: rank 0 has queries 0, 3, 6 with 1, 4, 7 keys: 12 pairs; K - 1 = 4: 3 + 4 + 5 = 12.
  pieces.clear();
  for_each_kernel_piece(shard("striped", micro_batch_of({9}), 3).of_rank(0), true, add);
  CHECK(pieces == std::vector<Piece>{{3, 5}});
  // Segments of every other rule are pieces as they are, tail tokens (every second one here) included.
  pieces.clear();
  ShardOptions tail;
  tail.remainder = Remainder::tail;
  const Sharding by_document = shard("per-document", micro_batch_of({7}), 2, tail);
  CHECK_FALSE(by_document.pieces.strided);
  for_each_kernel_piece(by_document.of_rank(0), by_document.pieces.strided, add);
  CHECK(pieces == std::vector<Piece>{{1, 1}, {1, 4}, {1, 5}, {1, 7}});
}

TEST_CASE("striped: ranks that share out heads have several tokens in c, one kernel piece as well") {
  // 16 tokens, c = 8, ranks 2 and 3 as one: queries 2, 3, 10, 11 with 3, 4, 11, 12 keys, 7.5 on average, and
  // so K = 9.
  Sharding both = shard("striped", micro_batch_of({16}), 8);
  both.segments.assign(&both.segments[both.rank_begin[2]], &both.segments[both.rank_begin[4]]);
  both.rank_begin = {0, 4};
  join_touching(both);
  CHECK(segments(both, 0) == Triples{{0, 2, 4}, {0, 10, 12}});
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for_each_kernel_piece(both.of_rank(0), true,
                        [&](auto queries, auto keys) { pieces.emplace_back(queries, keys); });
  CHECK(pieces == std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 9}});
}

TEST_CASE("heap-dispatch gives the largest block to the least loaded rank with a free slot") {
  ShardOptions options;
  options.block = 2;
  // One document of 8: blocks of 3, 7, 11, 15 pairs. 15 -> rank 0; 11 -> 1; 7 -> 1 (11 < 15), which is full
  // now; 3 -> 0: 18 and 18.
  CHECK(pairs(shard("heap-dispatch", micro_batch_of({8}), 2, options)) == Pairs{18, 18});
  // Equal blocks: ties go to the lower block and the lower rank.
  const Sharding equal = shard("heap-dispatch", micro_batch_of({2, 2, 2, 2}), 2, options);
  CHECK(segments(equal, 0) == Triples{{0, 0, 2}, {2, 0, 2}});
  // {1, 1, 1, 1, 4}: blocks 2, 2, 3, 7 pairs; 7 -> 0, 3 -> 1, 2 -> 1 (its last slot), 2 -> 0 although 5 < 7.
  const Sharding slots = shard("heap-dispatch", micro_batch_of({1, 1, 1, 1, 4}), 2, options);
  CHECK(pairs(slots) == Pairs{9, 5});
  CHECK(slots.rank_tokens == Pairs{4, 4});
}

TEST_CASE("heap-dispatch with top_p gives a block to the rank that sees most of its keys already") {
  ShardOptions options;
  options.block = 2;
  // {4, 2, 2}: blocks of 3 and 7, 3, 3 pairs. Alone by load: 7 -> 0, 3 -> 1, 3 -> 1, 3 -> 0, and the first
  // document lies on both ranks.
  CHECK(segments(shard("heap-dispatch", micro_batch_of({4, 2, 2}), 2, options), 0) ==
        Triples{{0, 2, 4}, {2, 0, 2}});
  // Both ranks asked: its other block goes where its two keys are seen; rank 0 is full then.
  options.top_p = 1;
  CHECK(segments(shard("heap-dispatch", micro_batch_of({4, 2, 2}), 2, options), 0) ==
        Triples{{0, 0, 2}, {0, 2, 4}});
  // With three ranks 0.5 asks two, so never the most loaded. {8}: 15 -> 0; 11: ranks 1 and 2 see nothing ->
  // 1; 7: ranks 2 (0) and 1 (11) are asked, 1 sees its four keys; 3: ranks 2 (0) and 0 (15), 0 sees its two.
  options.top_p = 0.5;
  const Sharding half = shard("heap-dispatch", micro_batch_of({8}), 3, options);
  CHECK(pairs(half) == Pairs{18, 18, 0});
}

TEST_CASE("block-placement keeps documents together as far as areas stay even") {
  ShardOptions options;
  options.block = 2;
  options.tolerance = 0.5;
  // {4, 4, 2, 2}: blocks 3, 7, 3, 7, 3, 3 on two ranks of three slots: a long and a short document each.
  const Sharding even = shard("block-placement", micro_batch_of({4, 4, 2, 2}), 2, options);
  CHECK(pairs(even) == Pairs{13, 13});
  CHECK(segments(even, 0).front()[0] == segments(even, 0)[1][0]);
  // One document of 8 on two ranks: the mean is 18, a rank may have 27. Its last half alone has 26, and then
  // the rank of the first half sees only its own keys.
  const Sharding cut = shard("block-placement", micro_batch_of({8}), 2, options);
  CHECK(pairs(cut) == Pairs{26, 10});
  options.tolerance = 0;
  CHECK(pairs(shard("block-placement", micro_batch_of({8}), 2, options)) == Pairs{18, 18});
}

TEST_CASE("snake deals sorted blocks forth and back") {
  ShardOptions options;
  options.block = 2;
  // Blocks 15, 11, 7, 3 to ranks 0, 1, 1, 0.
  CHECK(pairs(shard("snake", micro_batch_of({8}), 2, options)) == Pairs{18, 18});
  const Sharding equal = shard("snake", micro_batch_of({2, 2, 2, 2}), 2, options);
  CHECK(segments(equal, 0) == Triples{{0, 0, 2}, {3, 0, 2}});
  CHECK(segments(equal, 1) == Triples{{1, 0, 2}, {2, 0, 2}});
}

TEST_CASE("dacp keeps short documents whole and distributes the long one") {
  const QuadraticWorkload workload;
  ShardOptions options;
  options.bucket_size = 10;
  options.workload = &workload;
  // C = 10, N = 2, ascending: 2 -> rank 0, 3 -> rank 1 (load 0 < 4), 12: neither rank has 12, the fullest has
  // 7 >= 12/2: distributed. Rank 0 holds 2 + 6, rank 1 holds 3 + 6.
  const Sharding s = shard("dacp", micro_batch_of({12, 2, 3}), 2, options);
  CHECK(s.placement == std::vector<int>{kDistributed, 0, 1});
  CHECK(s.rank_tokens == Pairs{8, 9});
  CHECK(s.rank_local_tokens == Pairs{2, 3});
  CHECK(s.fits);

  // 21 tokens in 2 buckets of 10: nothing fits, and the sharding says so.
  const Sharding over = shard("dacp", micro_batch_of({12, 2, 7}), 2, options);
  CHECK_FALSE(over.fits);
  CHECK(over.rank_local_tokens == Pairs{0, 0});
}

TEST_CASE("dacp distributes a dependent chunk, however short") {
  const QuadraticWorkload workload;
  ShardOptions options;
  options.bucket_size = 100;  // it would fit on either rank
  options.workload = &workload;
  MicroBatch chunk = micro_batch_of({8});
  chunk.chunk = {0, 0, 2, 0};
  const Sharding s = shard("dacp", chunk, 2, options);
  CHECK(s.placement == std::vector<int>{kDistributed});
  CHECK(s.rank_tokens == Pairs{4, 4});
  CHECK(shard("dacp", micro_batch_of({8}), 2, options).placement == std::vector<int>{0});
}

TEST_CASE("an unknown rule names the nearest one") {
  CHECK_THROWS_WITH_AS(
      sharding_policy("per-sequense"),
      doctest::Contains("sharding: unknown name \"per-sequense\", did you mean \"per-sequence\"?"),
      UserError);
}
