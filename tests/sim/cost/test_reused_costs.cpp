// A result that is used again says nothing of what it held before: a run's figures may not depend on which
// thread costed which micro-batch.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "policies/workload.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

void check_same(const LayerTimeline& a, const LayerTimeline& b) {
  REQUIRE(a.ranks == b.ranks);
  REQUIRE(a.local == b.local);
  REQUIRE(a.overlap == b.overlap);
  REQUIRE(a.comm == b.comm);
  REQUIRE(a.exchanges.size() == b.exchanges.size());
  for (std::size_t e = 0; e < a.exchanges.size(); ++e) {
    REQUIRE(a.exchanges[e].run == b.exchanges[e].run);
    REQUIRE(a.exchanges[e].lead == b.exchanges[e].lead);
    REQUIRE(a.exchanges[e].duration == b.exchanges[e].duration);
  }
}

void check_same(const EndCost& a, const EndCost& b) {
  REQUIRE(a.total == b.total);
  REQUIRE(a.compute == b.compute);
}

void check_same(const Sharding& a, const Sharding& b) {
  const bool same_segments = std::equal(a.segments.begin(), a.segments.end(), b.segments.begin(),
                                        b.segments.end(), [](const Segment& x, const Segment& y) {
                                          return x.slice == y.slice && x.q_begin == y.q_begin &&
                                                 x.q_end == y.q_end && x.kv_begin == y.kv_begin;
                                        });
  REQUIRE(same_segments);
  REQUIRE(a.rank_begin == b.rank_begin);
  REQUIRE(a.rank_tokens == b.rank_tokens);
  REQUIRE(a.rank_local_tokens == b.rank_local_tokens);
  REQUIRE(a.padding_tokens == b.padding_tokens);
  REQUIRE(a.chosen == b.chosen);
  REQUIRE(a.placement == b.placement);
  REQUIRE(a.fits == b.fits);
}

void check_same(const MicroBatchCost& a, const MicroBatchCost& b) {
  REQUIRE(a.ranks == b.ranks);
  check_same(a.sharding, b.sharding);
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    check_same(a.forward[k], b.forward[k]);
    check_same(a.backward[k], b.backward[k]);
    check_same(a.full[k], b.full[k]);
    check_same(a.input_gradient[k], b.input_gradient[k]);
    REQUIRE(a.weight_gradient[k] == b.weight_gradient[k]);
    REQUIRE(a.compute_forward[k] == b.compute_forward[k]);
    REQUIRE(a.compute_backward[k] == b.compute_backward[k]);
    REQUIRE(a.recomputed[k] == b.recomputed[k]);
    REQUIRE(a.exposed_forward[k] == b.exposed_forward[k]);
    REQUIRE(a.exposed_backward[k] == b.exposed_backward[k]);
  }
  check_same(a.embed_forward, b.embed_forward);
  check_same(a.embed_backward, b.embed_backward);
  check_same(a.head_forward, b.head_forward);
  check_same(a.head_backward, b.head_backward);
  REQUIRE(a.send_next == b.send_next);
  REQUIRE(a.send_previous == b.send_previous);
  REQUIRE(a.send_wrap == b.send_wrap);
  REQUIRE(a.attention_forward == b.attention_forward);
  REQUIRE(a.kv_sent_tokens == b.kv_sent_tokens);
  REQUIRE(a.kv_useful_tokens == b.kv_useful_tokens);
  REQUIRE(a.use.calls == b.use.calls);
  REQUIRE(a.use.beyond_samples == b.use.beyond_samples);
}

// Whole documents, placed ones among them (now and then all of them), dependent chunks.
MicroBatch random_micro_batch(SplitMix64& random, int context) {
  MicroBatch micro_batch;
  const auto below = [&random](std::int64_t n) {
    return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
  };
  const std::uint64_t kind = random.next() % 4;
  if (kind == 0) {
    micro_batch.slices = {{0, 512, 1024}};
    micro_batch.chunk = {0, 1, 3, 0};
    return micro_batch;
  }
  for (std::int64_t n = 1 + below(5); n > 0; --n) {
    micro_batch.slices.push_back({n, 0, 1 + below(600)});
    if (kind == 1) micro_batch.placement.push_back(static_cast<int>(below(context)));
    if (kind == 2) micro_batch.placement.push_back(static_cast<int>(below(context + 1)) - 1);
  }
  return micro_batch;
}

ModelShape with_experts(int dense_layers) {
  ModelShape model = builtin_model("wlb-550m");
  model.moe = MoeShape{8, 2, 0, model.ffn, dense_layers};
  return model;
}

}  // namespace

TEST_CASE("A reused result equals a fresh one, whatever micro-batch was there before") {
  const FlopsWorkload workload(1024, 1024);
  for (const ContextComm form : {ContextComm::all_gather, ContextComm::ring, ContextComm::ulysses})
    for (const bool experts : {false, true}) {
      Layout layout;
      layout.context = 4;
      layout.context_comm = form;
      layout.recompute = form == ContextComm::ring ? Recompute::selective : Recompute::none;
      layout.expert = experts ? 4 : 1;
      const Models models(experts ? with_experts(1) : builtin_model("wlb-550m"), layout);
      for (const ShardPolicy& policy : sharding_policies()) {
        CAPTURE(policy.name);
        ShardRule rule = shard_by(std::string(policy.name).c_str());
        rule.options.bucket_size = 500;
        rule.options.workload = &workload;
        if (policy.name == "adaptive") rule.choice = ShardChoice::adaptive;
        if (policy.name == "optimal") rule.choice = ShardChoice::optimal;
        SplitMix64 random(7);
        MicroBatchCoster reused(models.costs, rule);
        MicroBatchCost again;
        for (int round = 0; round < 24; ++round) {
          CAPTURE(round);
          // Lanes of a step may differ in CP degree.
          const int context = experts || round % 3 > 0 ? 4 : 1 + static_cast<int>(random.next() % 2);
          const MicroBatch micro_batch = random_micro_batch(random, context);
          reused.cost(micro_batch, context, again);
          MicroBatchCost fresh;
          MicroBatchCoster(models.costs, rule).cost(micro_batch, context, fresh);
          check_same(again, fresh);
        }
      }
    }
}

TEST_CASE("A micro-batch of local documents sends no K and V, also after one that did") {
  Layout layout;
  layout.context = 2;
  layout.recompute = Recompute::none;
  const Models models(builtin_model("wlb-550m"), layout);
  const ShardRule rule = shard_by("per-document");
  MicroBatchCoster coster(models.costs, rule);
  MicroBatchCost cost;
  coster.cost(documents({4000, 4000}), 2, cost);
  REQUIRE(cost.kv_sent_tokens == 8000);  // each rank the other's half of both
  MicroBatch local = documents({4000, 4000});
  local.placement = {0, 1};
  coster.cost(local, 2, cost);
  CHECK(cost.kv_sent_tokens == 0);
  CHECK(cost.kv_useful_tokens == 0);
}

TEST_CASE("Optimal sharding compares the layers that a model has: experts in all of them, too") {
  for (const int dense_layers : {0, 1}) {
    Layout layout;
    layout.context = 4;
    layout.recompute = Recompute::none;
    const Models models(with_experts(dense_layers), layout);
    ShardRule optimal = shard_by("per-sequence");
    optimal.choice = ShardChoice::optimal;
    // A long document at the end: per-sequence gives its late, dear queries to ranks unevenly.
    const MicroBatch micro_batch = documents({9000, 30000, 200, 26336});
    const auto chosen_by = [&](const ShardRule& rule) {
      MicroBatchCost cost;
      MicroBatchCoster(models.costs, rule).cost(micro_batch, 4, cost);
      return cost;
    };
    const auto of_layer = [](const MicroBatchCost& cost) {
      std::vector<Picoseconds> clock(4, 0);
      advance(cost.forward[1], 1, clock);
      advance(cost.backward[1], 1, clock);
      return *std::max_element(clock.begin(), clock.end());
    };
    const ShardRule per_sequence = shard_by("per-sequence"), per_document = shard_by("per-document");
    const MicroBatchCost sequence = chosen_by(per_sequence), document = chosen_by(per_document);
    REQUIRE(of_layer(document) < of_layer(sequence));
    CHECK(chosen_by(optimal).sharding.chosen == "per-document");
  }
}
