// Ring attention, held against its definition: every run of queries against every block of the ring.
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

Layout ring_of(int context, Recompute recompute) {
  Layout layout;
  layout.context = context;
  layout.context_comm = ContextComm::ring;
  layout.recompute = recompute;
  return layout;
}

// What rank `rank` computes on the keys that rank `from` began with.
std::vector<QueryKeys> pieces_of(const Sharding& sharding, int rank, int from, std::int64_t earlier) {
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
      const Picoseconds f = models.costs.attention_forward(pieces, use).duration;
      forward += f;
      backward += models.costs.attention_backward(pieces, use).duration + (selective ? f : 0);
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
