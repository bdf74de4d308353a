// Disaggregated attention: what its exchanges move, what runs during them, what is refused.
#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/cost/check_layout.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout disaggregated(int context, int nano_batches) {
  Layout layout;
  layout.context = context;
  layout.context_comm = ContextComm::disaggregated;
  layout.nano_batches = nano_batches;
  return layout;
}

MicroBatchCost priced_by(const Models& models, const MicroBatch& micro_batch, const char* rule) {
  const ShardRule shard = shard_by(rule);
  MicroBatchCoster coster(models.costs, shard);
  MicroBatchCost cost;
  coster.cost(micro_batch, models.layout.context, cost);
  return cost;
}

AttentionTimes times_of(const Models& models, const AttentionTasks& tasks, int rank) {
  std::vector<QueryKeys> pieces;
  for (const AttentionTask& t : tasks.tasks)
    if (t.rank == rank) pieces.push_back({t.queries.queries(), t.queries.keys()});
  RangeUse use;
  return pieces.empty() ? AttentionTimes{} : models.costs.attention.times(pieces, use);
}

// The local ops of a layer's forward on so many tokens: before and behind the attention.
std::pair<Picoseconds, Picoseconds> forward_of(const Models& models, std::int64_t tokens) {
  OpList before, after;
  RangeUse use;
  models.costs.layers.forward(LayerKind::dense, tokens, before, after, use);
  return {run_time(before.ops()).total, run_time(after.ops()).total};
}

}  // namespace

TEST_CASE(
    "Disaggregated: Q, K and V of what moves go out, the output comes home, and all of it for a backward") {
  // One document of 8,192 on rank 0, eight of 1,024 on rank 1: rank 0 sends queries, and rank 1 none.
  const MicroBatch micro_batch = documents({8192, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024});
  for (const bool kept : {false, true}) {
    FrameworkOptions framework;
    framework.keep_gathered_kv = kept;
    const Models models(builtin_model("wlb-550m"), disaggregated(2, 1), framework);
    const MicroBatchCost cost = priced_by(models, micro_batch, "contiguous");
    const PlannedTasks& planned = planned_tasks(micro_batch, cost.sharding, models.costs);
    const TaskTraffic sent = planned.parts[0].traffic[0];
    REQUIRE(sent.queries_sent > 0);
    CHECK(sent.keys_sent == 8192);  // the strip at the tail sees all
    CHECK(planned.parts[0].traffic[1] == TaskTraffic{0, sent.queries_sent, 0, 8192});
    ContextExchanges exchanges;
    RangeUse use;
    const ContextGroup group = context_group(models.costs, 2);
    context_form(models.costs)
        .exchange(models.costs,
                  exchanged_tokens(micro_batch, cost.sharding, Mixer::attention, models.costs, nullptr),
                  group, exchanges, use);
    const ModelShape& m = models.costs.model();
    const double q = static_cast<double>(sent.queries_sent), query = 2.0 * m.heads * m.head_dim;
    const double keys = 8192 * 2.0 * 2 * m.kv_heads * m.head_dim, log_sum = 4.0 * m.heads;
    const double whole = 2;  // a send buffer has a part for each of the two
    REQUIRE(exchanges.forward.size() == 2);
    REQUIRE(exchanges.backward.size() == 2);
    CHECK(exchanges.forward[0].bytes == whole * (q * query + keys));
    CHECK(exchanges.forward[1].bytes == whole * q * (query + log_sum));
    CHECK(exchanges.backward[0].bytes == whole * (kept ? q * query : q * (3 * query + log_sum) + keys));
    CHECK(exchanges.backward[1].bytes == whole * (q * query + keys));
    CHECK(cost.kv_sent_tokens == 8192);
    CHECK(cost.kv_useful_tokens == 8192);
    // Rank 1 has its own 8,192, as many keys, and Q and output of the queries.
    CHECK(cost.cast_tokens == 2 * 8192 + static_cast<std::int64_t>(q * 2 * query / (keys / 8192)));
    for (int r = 0; r < 2; ++r) {
      CHECK(cost.attention_forward[0][at(r)] == times_of(models, planned.parts[0], r).forward);
      CHECK(cost.attention_backward[0][at(r)] == times_of(models, planned.parts[0], r).backward);
    }
    CHECK(cost.forward[0].overlap == std::vector<Picoseconds>(4, 0));
    // The ranks' pairs are within a tenth of each other; each rank's own are 33.6 and 4.2 million.
    const Models gather(builtin_model("wlb-550m"), [] {
      Layout layout = disaggregated(2, 1);
      layout.context_comm = ContextComm::all_gather;
      return layout;
    }());
    const MicroBatchCost own = priced_by(gather, micro_batch, "contiguous");
    CHECK(std::max(cost.attention_forward[0][0], cost.attention_forward[0][1]) < own.attention_forward[0][0]);
  }
}

TEST_CASE("Disaggregated: where ranks are within epsilon and hold whole documents nothing travels") {
  const Models models(builtin_model("wlb-550m"), disaggregated(2, 1));
  const MicroBatchCost cost = priced_by(models, documents({4096, 4096}), "contiguous");
  CHECK(cost.forward[0].syncs() == 0);
  CHECK(cost.backward[0].syncs() == 0);
  CHECK(cost.kv_sent_tokens == 0);
  const Models alone(builtin_model("wlb-550m"), disaggregated(1, 2));
  Layout gather;
  CHECK(priced_by(alone, documents({8192}), "per-document") ==
        priced_by(Models(builtin_model("wlb-550m"), gather), documents({8192}), "per-document"));
}

TEST_CASE("Two nano-batches: each half's exchanges are under the other's compute, backwards in reverse") {
  const MicroBatch micro_batch = documents({6144, 1024, 1024, 5120, 1536, 1536});
  const Models models(builtin_model("wlb-550m"), disaggregated(2, 2));
  const MicroBatchCost cost = priced_by(models, micro_batch, "contiguous");
  // Each half is the first three documents or the others, 4,096 tokens of it on each rank.
  const PlannedTasks& planned = planned_tasks(micro_batch, cost.sharding, models.costs);
  REQUIRE(planned.nano_batches == 2);
  REQUIRE(cost.forward[0].syncs() == 4);
  REQUIRE(cost.backward[0].syncs() == 4);
  const auto [before, after] = forward_of(models, 4096);
  for (std::size_t r = 0; r < 2; ++r) {
    const auto a = times_of(models, planned.parts[0], static_cast<int>(r));
    const auto b = times_of(models, planned.parts[1], static_cast<int>(r));
    const auto under = [&](const LayerTimeline& layer, std::size_t e) { return layer.overlap[e * 2 + r]; };
    CHECK(cost.forward[0].local[r] == before);
    CHECK(under(cost.forward[0], 0) == before);
    CHECK(under(cost.forward[0], 1) == a.forward);
    CHECK(under(cost.forward[0], 2) == b.forward);
    CHECK(under(cost.forward[0], 3) == after);
    CHECK(cost.forward[0].local[4 * 2 + r] == after);
    CHECK(under(cost.backward[0], 1) == b.backward);
    CHECK(under(cost.backward[0], 2) == a.backward);
    CHECK(cost.attention_forward[0][r] == a.forward + b.forward);
  }
  // Twice the bytes that a half moves are about those of the whole; what runs meanwhile hides most.
  const Models whole(builtin_model("wlb-550m"), disaggregated(2, 1));
  const MicroBatchCost one = priced_by(whole, micro_batch, "contiguous");
  const auto exposed = [](const MicroBatchCost& c) { return c.exposed_forward[0][at(Stream::cp)]; };
  CHECK(exposed(one) > 0);
  CHECK(exposed(cost) < exposed(one) / 2);
}

TEST_CASE("Disaggregated refuses what it cannot plan, and says what would do") {
  const Models models(builtin_model("wlb-550m"), disaggregated(2, 1));
  MicroBatch chunk = documents({8192});
  chunk.chunk = {0, 0, 2, 0};
  CHECK_THROWS_WITH_AS(
      priced_by(models, chunk, "per-document"),
      "parallel.context_comm: disaggregated with dependent chunks; allowed: micro-batches of "
      "whole slices",
      UserError);
  CHECK_THROWS_WITH_AS(
      priced_by(models, documents({8192}), "striped"),
      "parallel.context_comm: disaggregated with striped sharding; allowed: rules that leave "
      "runs of tokens",
      UserError);
  CHECK_THROWS_WITH_AS(check_layout(builtin_model("deepseek-v2"), disaggregated(2, 2), "study.json"),
                       "study.json: parallel.nano_batches: expected 1 for a model with experts, found 2",
                       UserError);
  // A policy may make CP groups where the layout has none.
  Layout alone = disaggregated(2, 2);
  alone.context = 1;
  const Models sparse(builtin_model("deepseek-v2"), alone);
  const ShardRule shard = shard_by("per-document");
  MicroBatchCoster coster(sparse.costs, shard);
  MicroBatchCost cost;
  CHECK_THROWS_WITH_AS(
      coster.cost(documents({8192}), 2, cost),
      "parallel.context_comm: disaggregated with two nano-batches of a model with experts; allowed: "
      "nano_batches 1",
      UserError);
}
