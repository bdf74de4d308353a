// Micro-batches for the sharding tests, and the law every rule has to keep.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "policies/base/random.h"
#include "policies/sharding/sharding.h"

namespace equipoise::test {

inline MicroBatch micro_batch_of(const std::vector<std::int64_t>& lengths) {
  MicroBatch batch;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    batch.slices.push_back({static_cast<std::int64_t>(i), 0, lengths[i]});
  return batch;
}

inline std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

// 1 to 12 slices of 1 to 200 tokens with arbitrary begins; now and then a padded batch, a chunk of a
// dependent group, or placements.
inline MicroBatch random_micro_batch(SplitMix64& random, int ranks) {
  MicroBatch batch;
  const std::int64_t slices = 1 + below(random, 12);
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::int64_t begin = below(random, 3) == 0 ? below(random, 100) : 0;
    const std::int64_t longest = below(random, 2) == 0 ? 200 : 6;
    batch.slices.push_back({i, begin, begin + 1 + below(random, longest)});
  }
  const std::int64_t kind = below(random, 6);
  if (kind == 0) {
    for (const Slice& s : batch.slices) batch.pad_each_to = std::max(batch.pad_each_to, s.tokens());
  } else if (kind == 1) {
    batch.slices = {{0, 64, 64 + 1 + below(random, 64)}};
    batch.chunk = {0, 1, 3, below(random, 65)};
  } else if (kind == 2) {
    for (std::int64_t i = 0; i < slices; ++i)
      batch.placement.push_back(static_cast<int>(below(random, ranks + 1)) - 1);
  }
  return batch;
}

// The laws of a sharding: no empty segment, token counts that add up, every query token on exactly one rank,
// causal pairs that sum to the micro-batch's, padding counted.
inline void check_invariants(const MicroBatch& batch, int ranks, const Sharding& sharding) {
  REQUIRE(sharding.rank_begin.size() == static_cast<std::size_t>(ranks) + 1);
  REQUIRE(sharding.ranks() == ranks);
  REQUIRE(sharding.rank_begin.front() == 0);
  REQUIRE(sharding.rank_begin.back() == sharding.segments.size());

  std::vector<Segment> all;
  std::int64_t pairs = 0;
  for (int r = 0; r < ranks; ++r) {
    std::int64_t tokens = 0;
    for (const Segment& s : sharding.of_rank(r)) {
      REQUIRE(s.q_begin < s.q_end);  // there are no empty segments
      tokens += s.queries();
      pairs += s.pairs();
      all.push_back(s);
    }
    CHECK(tokens == sharding.rank_tokens[static_cast<std::size_t>(r)]);
  }

  // Every query token sits on exactly one rank: per slice the segments tile [begin, begin + computed tokens).
  std::sort(all.begin(), all.end(), [](const Segment& a, const Segment& b) {
    return a.slice != b.slice ? a.slice < b.slice : a.q_begin < b.q_begin;
  });
  std::size_t at = 0;
  std::int64_t padding = 0;
  std::int64_t causal_pairs = 0;
  for (std::size_t i = 0; i < batch.slices.size(); ++i) {
    const Slice& slice = batch.slices[i];
    const std::int64_t reach = batch.chunk.count > 1 ? batch.chunk.group_begin : slice.begin;
    std::int64_t covered = slice.begin;
    for (; at < all.size() && all[at].slice == static_cast<std::int32_t>(i); ++at) {
      CHECK(all[at].q_begin == covered);
      CHECK(all[at].kv_begin == reach);
      covered = all[at].q_end;
    }
    CHECK(covered >= slice.end);
    padding += covered - slice.end;
    const std::int64_t computed = covered - slice.begin;
    causal_pairs += computed * (slice.begin - reach) + computed * (computed + 1) / 2;
  }
  CHECK(at == all.size());
  CHECK(padding == sharding.padding_tokens);
  CHECK(pairs == causal_pairs);
}

}  // namespace equipoise::test
