// Laws of every sharding rule on 10,000 random micro-batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "policies/sharding/sharding.h"
#include "policies/workload.h"
#include "tests/policies/sharding_cases.h"

using namespace equipoise;

namespace {

// No two segments of a rank touch, and one rank has whole slices.
void check_joined(const MicroBatch& batch, Sharding& sharding) {
  join_touching(sharding);
  test::check_invariants(batch, sharding.ranks(), sharding);
  if (sharding.ranks() == 1) CHECK(sharding.segments.size() == batch.slices.size());
  for (int r = 0; r < sharding.ranks(); ++r) {
    const auto of_rank = sharding.of_rank(r);
    CHECK(std::ranges::adjacent_find(of_rank, [](const Segment& a, const Segment& b) {
            return a.slice > b.slice || (a.slice == b.slice && a.q_end >= b.q_begin);
          }) == of_rank.end());
  }
}

// Keys that ranks see, each counted once a rank.
std::size_t keys_seen(const Sharding& sharding) {
  std::set<std::array<std::int64_t, 3>> seen;  // rank, slice, key
  for (int r = 0; r < sharding.ranks(); ++r)
    for (const Segment& s : sharding.of_rank(r))
      for (std::int64_t key = s.kv_begin; key < s.q_end; ++key) seen.insert({r, s.slice, key});
  return seen.size();
}

std::int64_t most_pairs_of_a_rank(const Sharding& sharding) {
  std::int64_t most = 0;
  for (int r = 0; r < sharding.ranks(); ++r) {
    std::int64_t sum = 0;
    for (const Segment& s : sharding.of_rank(r)) sum += s.pairs();
    most = std::max(most, sum);
  }
  return most;
}

// Fewest keys that ranks see, over all placements within the slots and the pairs; blocks as they are in
// `whole`, the sharding on one rank.
std::size_t fewest_keys(const Sharding& whole, std::int64_t block, int ranks, std::int64_t most_pairs) {
  std::vector<std::vector<Segment>> blocks(1);
  std::int64_t room = block;
  for (const Segment& s : whole.of_rank(0)) {
    if (room == 0) {
      blocks.emplace_back();
      room = block;
    }
    blocks.back().push_back(s);
    room -= s.queries();
  }
  const std::size_t slots =
      (blocks.size() + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  std::size_t placements = 1, least = std::numeric_limits<std::size_t>::max();
  for (std::size_t b = 0; b < blocks.size(); ++b) placements *= static_cast<std::size_t>(ranks);
  for (std::size_t code = 0; code < placements; ++code) {
    std::vector<std::vector<Segment>> on(static_cast<std::size_t>(ranks));
    std::vector<std::size_t> used(on.size(), 0);
    std::size_t rest = code;
    for (const std::vector<Segment>& one : blocks) {
      const std::size_t r = rest % on.size();
      rest /= on.size();
      ++used[r];
      on[r].insert(on[r].end(), one.begin(), one.end());
    }
    if (*std::ranges::max_element(used) > slots) continue;
    Sharding tried;
    tried.rank_begin = {0};
    for (const std::vector<Segment>& one : on) {
      tried.segments.insert(tried.segments.end(), one.begin(), one.end());
      tried.rank_begin.push_back(static_cast<std::uint32_t>(tried.segments.size()));
    }
    tried.rank_tokens.resize(on.size());
    if (most_pairs_of_a_rank(tried) <= most_pairs) least = std::min(least, keys_seen(tried));
  }
  return least;
}

}  // namespace

TEST_CASE("every rule puts every query on exactly one rank and keeps the causal pairs, joined or not") {
  const QuadraticWorkload workload;
  const TileAttentionCost cost(16);
  SplitMix64 random(1);
  Sharding out;  // one for all: nothing of the case before may show
  for (int i = 0; i < 10000; ++i) {
    const int ranks = 1 + static_cast<int>(test::below(random, 9));
    const MicroBatch batch = test::random_micro_batch(random, ranks);
    ShardOptions options;
    options.pad = Pad::tail;
    options.remainder = static_cast<Remainder>(test::below(random, 3));
    options.block = 1 + test::below(random, 40);
    options.bucket_size = 1 + test::below(random, 400);
    options.workload = &workload;
    options.top_p = static_cast<double>(test::below(random, 5)) / 4;
    CAPTURE(i);
    for (const ShardPolicy& policy : sharding_policies()) {
      CAPTURE(policy.name);
      policy.shard(batch, ranks, options, cost, out);
      test::check_invariants(batch, ranks, out);
      for (std::size_t s = 0; s < batch.placement.size(); ++s) {
        if (batch.placement[s] == kDistributed) continue;
        const auto local = out.of_rank(batch.placement[s]);
        CHECK(std::any_of(local.begin(), local.end(), [&](const Segment& segment) {
          return segment.slice == static_cast<std::int32_t>(s) &&
                 segment.queries() == std::max(batch.slices[s].tokens(), batch.pad_each_to);
        }));
      }
      if (i % 5 == 0) check_joined(batch, out);
    }
  }
}

TEST_CASE("block-placement against every placement of few blocks, and never above a heap dispatch as even") {
  SplitMix64 random(5);
  const TileAttentionCost cost;
  Sharding out, whole, heap;
  int cases = 0, best = 0;
  double worst = 1;
  for (int i = 0; i < 300; ++i) {
    const int ranks = 2 + static_cast<int>(test::below(random, 2));
    MicroBatch batch;
    for (std::int64_t n = 1 + test::below(random, 6), d = 0; d < n; ++d)
      batch.slices.push_back({d, 0, 1 + test::below(random, 24)});
    ShardOptions options;
    options.block = 8;
    options.tolerance = static_cast<double>(test::below(random, 4)) / 10;
    sharding_policy("block-placement").shard(batch, ranks, options, cost, out);
    sharding_policy("heap-dispatch").shard(batch, 1, options, cost, whole);
    sharding_policy("heap-dispatch").shard(batch, ranks, options, cost, heap);
    if (whole.segments.size() > 11) continue;
    std::int64_t all = 0;
    for (const Segment& s : whole.segments) all += s.pairs();
    const std::int64_t most =
        std::max(most_pairs_of_a_rank(heap),
                 static_cast<std::int64_t>((1 + options.tolerance) * static_cast<double>(all) / ranks));
    CAPTURE(i);
    CHECK(most_pairs_of_a_rank(out) <= most);
    CHECK(keys_seen(out) <= keys_seen(heap));
    const std::size_t fewest = fewest_keys(whole, options.block, ranks, most);
    REQUIRE(keys_seen(out) >= fewest);
    ++cases;
    best += keys_seen(out) == fewest ? 1 : 0;
    worst = std::max(worst, static_cast<double>(keys_seen(out)) / static_cast<double>(fewest));
  }
  MESSAGE(best << " of " << cases << " as few as can be, the worst " << worst << " times that");
  CHECK(cases > 100);
  CHECK(best * 100 >= cases * 95);
}

TEST_CASE("rank totals differ by at most one token where the rule promises it") {
  SplitMix64 random(2);
  const TileAttentionCost cost;
  Sharding out;
  for (int i = 0; i < 10000; ++i) {
    const int ranks = 1 + static_cast<int>(test::below(random, 16));
    MicroBatch batch = test::random_micro_batch(random, ranks);
    batch.placement.clear();
    for (const Remainder remainder : {Remainder::slots, Remainder::tail}) {
      ShardOptions options;
      options.remainder = remainder;
      sharding_policy("per-document").shard(batch, ranks, options, cost, out);
      const auto [least, most] = std::minmax_element(out.rank_tokens.begin(), out.rank_tokens.end());
      CHECK(*most - *least <= 1);
    }
  }
}

TEST_CASE("zig-zag on one document that 2c divides is exactly even, whatever the rule") {
  SplitMix64 random(3);
  const TileAttentionCost cost;
  Sharding out;
  for (int i = 0; i < 1000; ++i) {
    const int ranks = 1 + static_cast<int>(test::below(random, 16));
    const MicroBatch batch = test::micro_batch_of({2 * ranks * (1 + test::below(random, 50))});
    for (const char* name : {"per-sequence", "per-document"}) {
      sharding_policy(name).shard(batch, ranks, {}, cost, out);
      std::int64_t first = 0;
      for (const Segment& s : out.of_rank(0)) first += s.pairs();
      for (int r = 1; r < ranks; ++r) {
        std::int64_t sum = 0;
        for (const Segment& s : out.of_rank(r)) sum += s.pairs();
        CHECK(sum == first);
      }
    }
  }
}

TEST_CASE("adaptive is never predicted slower than either of its two rules") {
  SplitMix64 random(4);
  const TileAttentionCost cost(32);
  const auto slowest = [&](const Sharding& s) {
    double most = 0;
    for (int r = 0; r < s.ranks(); ++r) most = std::max(most, cost.seconds(s.of_rank(r)));
    return most;
  };
  Sharding adaptive;
  Sharding other;
  int per_document = 0;
  for (int i = 0; i < 2000; ++i) {
    const int ranks = 2 + static_cast<int>(test::below(random, 7));
    const MicroBatch batch = test::random_micro_batch(random, ranks);
    ShardOptions options;
    options.pad = Pad::tail;
    sharding_policy("adaptive").shard(batch, ranks, options, cost, adaptive);
    for (const char* name : {"per-sequence", "per-document"}) {
      sharding_policy(name).shard(batch, ranks, options, cost, other);
      CHECK(slowest(adaptive) <= slowest(other));
    }
    per_document += adaptive.chosen == "per-document" ? 1 : 0;
  }
  CHECK(per_document > 100);  // both are taken, so the comparison means something
  CHECK(per_document < 1900);
}
