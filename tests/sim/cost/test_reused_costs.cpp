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
  MicroBatchCost again;  // of every rule, form and model in turn
  for (const ContextComm form :
       {ContextComm::all_gather, ContextComm::ring, ContextComm::ulysses, ContextComm::ulysses_ring,
        ContextComm::ulysses_all_gather, ContextComm::group_cast, ContextComm::disaggregated})
    for (const bool experts : {false, true}) {
      Layout layout;
      layout.context = 4;
      layout.context_comm = form;
      layout.context_inner = 2;
      layout.recompute = form == ContextComm::ring ? Recompute::selective : Recompute::none;
      layout.expert = experts ? 4 : 1;
      layout.nano_batches = experts ? 1 : 2;
      const Models models(experts ? with_experts(1) : builtin_model("wlb-550m"), layout);
      for (const ShardPolicy& policy : sharding_policies()) {
        CAPTURE(policy.name);
        if (form == ContextComm::disaggregated && policy.deals_tokens) continue;
        ShardRule rule = shard_by(std::string(policy.name).c_str());
        rule.options.bucket_size = 500;
        rule.options.workload = &workload;
        if (policy.name == "adaptive") rule.choice = ShardChoice::adaptive;
        if (policy.name == "optimal") rule.choice = ShardChoice::optimal;
        SplitMix64 random(7);
        MicroBatchCoster reused(models.costs, rule);
        for (int round = 0; round < 24; ++round) {
          CAPTURE(round);
          // Lanes of a step may differ in CP degree.
          const int context = experts || round % 3 > 0 ? 4 : 1 + static_cast<int>(random.next() % 2);
          const MicroBatch micro_batch = random_micro_batch(random, context);
          if (form == ContextComm::disaggregated && micro_batch.chunk.count > 1) continue;
          reused.cost(micro_batch, context, again);
          MicroBatchCost fresh;
          MicroBatchCoster(models.costs, rule).cost(micro_batch, context, fresh);
          REQUIRE(again == fresh);
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
