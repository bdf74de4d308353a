// Ring attention, compared with its definition: every run of queries against every block of the ring.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "policies/workload.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout ring_of(int context, Recompute recompute) {
  Layout layout;
  layout.context = context;
  layout.context_comm = ContextComm::ring;
  layout.recompute = recompute;
  return layout;
}

// The same where a rank has single tokens: those of a slice are one call, causal, of as many pairs.
std::vector<QueryKeys> strided_pieces_of(const Sharding& sharding, int rank, int from, std::int64_t earlier) {
  std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> of_slice;  // queries, pairs in this block
  for (const Segment& q : sharding.of_rank(rank)) {
    std::int64_t keys = 0;
    for (const Segment& k : sharding.of_rank(from))
      if (k.slice == q.slice && k.q_begin <= q.q_begin) ++keys;
    if (earlier + keys == 0) continue;
    auto& [queries, pairs] = of_slice[q.slice];
    ++queries;
    pairs += keys;
  }
  std::vector<QueryKeys> pieces;
  for (const auto& [slice, counted] : of_slice) {
    const auto [queries, pairs] = counted;
    pieces.push_back({queries, std::max(earlier + (2 * pairs / queries + queries - 1) / 2, queries)});
  }
  return pieces;
}

// What rank `rank` computes on the keys that rank `from` began with.
std::vector<QueryKeys> pieces_of(const Sharding& sharding, int rank, int from, std::int64_t earlier) {
  if (sharding.pieces.strided) return strided_pieces_of(sharding, rank, from, earlier);
  std::vector<QueryKeys> pieces;
  for (const Segment& q : sharding.of_rank(rank)) {
    std::int64_t keys = earlier;
    for (const Segment& k : sharding.of_rank(from))
      if (k.slice == q.slice && k.q_begin < q.q_end) keys += k.queries();
    if (keys == 0) continue;
    if (from != rank) keys = std::max(keys + (q.queries() - 1) / 2, q.queries());
    pieces.push_back({q.queries(), keys});
  }
  return pieces;
}

void check_ring(const Models& models, const MicroBatch& micro_batch, int context,
                const MicroBatchCost& cost) {
  const std::int64_t earlier = (earlier_tokens(micro_batch, 0) + context - 1) / context;
  const bool selective = models.layout.recompute == Recompute::selective;
  RangeUse use;
  for (int r = 0; r < context; ++r) {
    Picoseconds forward = 0, backward = 0;
    for (int from = 0; from < context; ++from) {
      const std::vector<QueryKeys> pieces = pieces_of(cost.sharding, r, from, earlier);
      const Picoseconds f = models.costs.attention.forward(pieces, use).duration;
      forward += f;
      backward += models.costs.attention.backward(pieces, use).duration + (selective ? f : 0);
    }
    CAPTURE(r);
    REQUIRE(cost.attention_forward[0][static_cast<std::size_t>(r)] == forward);
    REQUIRE(cost.attention_backward[0][static_cast<std::size_t>(r)] == backward);
  }
}

}  // namespace

TEST_CASE("A ring's attention is the sum over its blocks, whatever the sharding") {
  const FlopsWorkload workload(1024, 1024);
  SplitMix64 random(3);
  for (const int context : {2, 3, 8})
    for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
      const Models models(builtin_model("wlb-550m"), ring_of(context, recompute));
      for (const ShardPolicy& policy : sharding_policies()) {
        CAPTURE(policy.name);
        ShardRule rule = shard_by(std::string(policy.name).c_str());
        rule.options.bucket_size = 4000;
        rule.options.pad = Pad::tail;
        rule.options.workload = &workload;
        for (int round = 0; round < 8; ++round) {
          MicroBatch micro_batch;
          for (std::int64_t n = 1 + static_cast<std::int64_t>(random.next() % 6); n > 0; --n)
            micro_batch.slices.push_back({n, 0, 1 + static_cast<std::int64_t>(random.next() % 900)});
          if (round == 7) {
            micro_batch.slices = {{0, 512, 1024}};
            micro_batch.chunk = {0, 1, 3, 0};
          }
          MicroBatchCost cost;
          MicroBatchCoster(models.costs, rule).cost(micro_batch, context, cost);
          check_ring(models, micro_batch, context, cost);
        }
      }
    }
}

TEST_CASE(
    "A striped ring is priced as a call a step, not as one a token: even ranks, at a time like zigzag's") {
  const Models models(builtin_model("llama2-7b"), ring_of(8, Recompute::none));
  const auto of_ranks = [&](const char* rule, const MicroBatch& micro_batch) {
    MicroBatchCost cost;
    const ShardRule shard = shard_by(rule);
    MicroBatchCoster(models.costs, shard).cost(micro_batch, 8, cost);
    const auto [least, most] = std::ranges::minmax(cost.attention_backward[0]);
    return std::pair(to_seconds(least), to_seconds(most));
  };
  const auto [least, most] = of_ranks("striped", documents({65536, 8192, 100}));
  CHECK(most < 1.01 * least);
  CHECK(of_ranks("striped", documents({65536})).second ==
        doctest::Approx(of_ranks("per-sequence", documents({65536})).second).epsilon(0.1));
}

TEST_CASE("PyTorch's ring gathers all heads' keys once a pass, and sends their gradients round in fp32") {
  FrameworkOptions framework;
  framework.linear_layers = LinearLayers::torch;
  const ModelShape& model = builtin_model("llama3.1-8b");  // 32 query heads of 128, 8 KV heads
  const Models torch(model, ring_of(4, Recompute::none), framework);
  const Models plain(model, ring_of(4, Recompute::none));
  CHECK(torch.costs.kv_bytes_per_token() == 2 * 2 * 32 * 128);
  ContextExchanges exchanges;
  RangeUse use;
  const ExchangedTokens tokens{.distributed = 4096, .fullest = 1024};
  kRingForm.exchange(torch.costs, tokens, context_group(torch.costs, 4), exchanges, use);
  REQUIRE(exchanges.forward.size() == 1);
  CHECK(exchanges.forward[0].bytes == 4096 * 16384.0);
  REQUIRE(exchanges.backward.size() == 5);
  CHECK(exchanges.backward[0].bytes == exchanges.forward[0].bytes);
  for (std::size_t hop = 1; hop < 5; ++hop) CHECK(exchanges.backward[hop].bytes == 2 * 1024 * 16384.0);
  // The same calls of attention, and in addition copies: forward 4 bytes of an element of Q and 9.5 for each
  // of three merges, backward 26, 28.5 and 10.
  const auto passes = [&](const Models& models) {
    MicroBatchCost cost;
    const ShardRule rule = shard_by("per-sequence");
    MicroBatchCoster(models.costs, rule).cost(documents({4096}), 4, cost);
    return cost;
  };
  const MicroBatchCost of_torch = passes(torch), of_plain = passes(plain);
  const auto moved = [&](double bytes) {
    return torch.costs.kernels.moves(OpName::attention, Elementwise::copy, bytes * 1024 * 32 * 128, use)
        .duration;
  };
  CHECK(of_torch.attention_forward[0][0] - of_plain.attention_forward[0][0] == moved(4) + 3 * moved(9.5));
  CHECK(of_torch.attention_backward[0][0] - of_plain.attention_backward[0][0] ==
        moved(26) + 3 * moved(28.5) + moved(10));
  CHECK(of_torch.forward[0].syncs() == 1);
  CHECK(of_torch.backward[0].syncs() == 5);
  // 4,096 gathered tokens and 7 of a rank's 1,024, half of which K and V count again, of four heads each.
  CHECK(torch.memory.gathered_tokens(4, 1024, 4096) == 4 * (4096 + 7 * 1024) / 2);
}

TEST_CASE("Transformer Engine's ring copies halves, corrects outputs and adds gradients next to its calls") {
  FrameworkOptions framework;
  framework.ring_merges = true;
  const ModelShape& model = builtin_model("llama3.1-8b");  // 32 query heads of 128, 8 KV heads
  Layout nested = ring_of(4, Recompute::none);
  nested.context_comm = ContextComm::ulysses_ring;
  nested.context_inner = 2;
  for (const Layout& layout : {ring_of(4, Recompute::none), nested}) {
    const Models merging(model, layout, framework);
    const Models plain(model, layout);
    const auto cost_of = [&](const Models& models) {
      MicroBatchCost cost;
      MicroBatchCoster(models.costs, shard_by("per-sequence")).cost(documents({4096}), 4, cost);
      return cost;
    };
    const MicroBatchCost with = cost_of(merging), without = cost_of(plain);
    // A rank of the nested ring has twice the tokens of half the heads, and one further step instead of
    // three.
    const int further = layout.context_inner == 2 ? 1 : 3;
    RangeUse use;
    const auto moved = [&](double query, double key) {
      const double bytes = 1024.0 * 128 * (query * 32 + key * 2 * 8);
      return merging.costs.kernels.moves(OpName::attention, Elementwise::copy, bytes, use).duration;
    };
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(with.attention_forward[0][r] - without.attention_forward[0][r] ==
            moved(8, 4) + further * moved(5.5, 1));
      CHECK(with.attention_backward[0][r] - without.attention_backward[0][r] ==
            moved(4, 8) + further * moved(7.5, 5.5));
    }
  }
}
