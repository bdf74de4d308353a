// Laws of every sharding rule on 10,000 random micro-batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

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
