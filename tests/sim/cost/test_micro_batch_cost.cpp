// A micro-batch on its CP ranks: conservation of work, CP forms, placements.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/cost/context_exchange/context_form.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout context_parallel(int context, ContextComm form = ContextComm::all_gather) {
  Layout layout;
  layout.context = context;
  layout.context_comm = form;
  layout.recompute = Recompute::none;
  return layout;
}

// Attention FLOPs of all ranks, from what the attention op of each rank reports.
double attention_flops(const Models& models, const MicroBatchCost& cost) {
  double sum = 0;
  RangeUse use;
  for (int r = 0; r < cost.ranks; ++r) {
    std::vector<QueryKeys> pieces;
    for (const Segment& s : cost.sharding.of_rank(r)) pieces.push_back({s.queries(), s.keys()});
    sum += models.costs.attention.forward(pieces, use).flops;
  }
  return sum;
}

Picoseconds once(const LayerTimeline& layer) {
  std::vector<Picoseconds> clock(static_cast<std::size_t>(layer.ranks), 0);
  advance(layer, 1, clock);
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace

TEST_CASE("Attention FLOPs over the ranks are 4 x heads x d for every causal pair of the documents") {
  SplitMix64 random(1);
  const ModelShape& model = builtin_model("llama3.1-8b");
  for (const int context : {1, 2, 4}) {
    const Models models(model, context_parallel(context));
    for (int round = 0; round < 50; ++round) {
      MicroBatch micro_batch;
      double pairs = 0;
      std::int64_t tokens = 0;
      for (std::uint64_t n = 1 + random.next() % 6; n > 0; --n) {
        const auto length = static_cast<std::int64_t>(1 + random.next() % 3000);
        micro_batch.slices.push_back({static_cast<std::int64_t>(n), 0, length});
        tokens += length;
      }
      micro_batch.slices.back().end += (8 - tokens % 8) % 8;  // so that per-sequence pads nothing
      for (const Slice& s : micro_batch.slices)
        pairs += static_cast<double>(s.tokens()) * static_cast<double>(s.tokens() + 1) / 2;
      for (const char* shard : {"per-sequence", "per-document"}) {
        CAPTURE(shard);
        const MicroBatchCost cost = cost_of(models, micro_batch, shard);
        REQUIRE(attention_flops(models, cost) ==
                doctest::Approx(pairs * 4 * model.heads * model.head_dim).epsilon(1e-12));
        const auto& held = cost.sharding.rank_tokens;
        REQUIRE(std::accumulate(held.begin(), held.end(), std::int64_t{0}) == micro_batch.tokens());
      }
    }
  }
}

TEST_CASE("One rank exchanges nothing; all-gather meets once forward and twice backward") {
  const MicroBatch micro_batch = documents({6000, 2192});
  const Models one(builtin_model("wlb-550m"), context_parallel(1));
  CHECK(cost_of(one, micro_batch, "per-sequence").forward[0].syncs() == 0);
  const Models four(builtin_model("wlb-550m"), context_parallel(4));
  const MicroBatchCost cost = cost_of(four, micro_batch, "per-document");
  CHECK(cost.forward[0].syncs() == 1);
  CHECK(cost.backward[0].syncs() == 2);
  CHECK(cost.full[0].syncs() == 3);
  // 8192 tokens, 2048 on each rank: three quarters of everything arrives at each of four ranks.
  CHECK(cost.kv_sent_tokens == 4 * 6144);
  CHECK(cost.kv_useful_tokens > 0);
  CHECK(cost.kv_useful_tokens < cost.kv_sent_tokens);
}

TEST_CASE("Runs of keys: two by sequence, two of each document by document") {
  // Four ranks have two of eight chunks of 1,024 each: by sequence a chunk may end one
  // document and begin the next, whose keys follow.
  const MicroBatch micro_batch = documents({1024, 1016, 1008, 5144});
  const Models models(builtin_model("wlb-550m"), context_parallel(4));
  const auto runs = [&](const char* shard) {
    const MicroBatchCost cost = cost_of(models, micro_batch, shard);
    return exchanged_tokens(micro_batch, cost.sharding, 0, models.layout).key_runs;
  };
  CHECK(runs("per-sequence") == 2);
  CHECK(runs("per-document") == 8);
  CHECK(runs("striped") == 4);  // every fourth token of a document is one run
  // Documents that one rank holds whole travel nowhere: two chunks of the last are left.
  MicroBatch placed = micro_batch;
  placed.placement = {0, 0, 0, kDistributed};
  const MicroBatchCost cost = cost_of(models, placed, "per-document");
  CHECK(exchanged_tokens(placed, cost.sharding, 0, models.layout).key_runs == 2);
}

TEST_CASE("A ring meets c - 1 times and computes meanwhile; Ulysses meets before and after attention") {
  const MicroBatch micro_batch = documents({8192});
  const Models ring(builtin_model("wlb-550m"), context_parallel(4, ContextComm::ring));
  const MicroBatchCost in_ring = cost_of(ring, micro_batch, "per-document");
  CHECK(in_ring.forward[0].syncs() == 3);
  CHECK(std::count_if(in_ring.forward[0].overlap.begin(), in_ring.forward[0].overlap.end(),
                      [](Picoseconds t) { return t > 0; }) > 0);
  const Models ulysses(builtin_model("wlb-550m"), context_parallel(4, ContextComm::ulysses));
  const MicroBatchCost spread = cost_of(ulysses, micro_batch, "per-document");
  CHECK(spread.forward[0].syncs() == 2);
  CHECK(spread.backward[0].syncs() == 2);
  CHECK(spread.kv_sent_tokens > 0);
  CHECK(spread.kv_useful_tokens == spread.kv_sent_tokens);  // every rank has all queries of its heads
  // All ranks attend to all tokens with their share of the heads: no rank is slower.
  const auto [fastest, slowest] =
      std::minmax_element(spread.attention_forward[0].begin(), spread.attention_forward[0].end());
  CHECK(*fastest == *slowest);
}

TEST_CASE("Every CP form has exchanges, and a run of attention behind each") {
  for (std::size_t f = 0; f < std::size(kContextForms); ++f)
    for (const int context : {2, 3, 4, 6, 12}) {
      CAPTURE(kContextCommNames[f]);
      CAPTURE(context);
      const auto form = static_cast<ContextComm>(f);
      Layout layout = context_parallel(context, form);
      layout.context_inner = context % 2 == 0 ? 2 : 3;
      const Models models(builtin_model("wlb-550m"), layout);  // 12 heads
      const MicroBatchCost cost = cost_of(models, documents({9000, 2500, 788}), "per-document");
      for (const LayerTimeline* pass : {&cost.forward[0], &cost.backward[0]}) {
        CHECK(pass->syncs() > 0);
        CHECK(pass->overlap.size() == pass->syncs() * pass->local.size() / (pass->syncs() + 1));
        CHECK(*std::min_element(pass->comm.begin(), pass->comm.end()) > 0);
      }
    }
}

TEST_CASE("Local documents need no exchange, and hide the gathering of distributed ones") {
  const Models models(builtin_model("wlb-550m"), context_parallel(2));
  MicroBatch local = documents({4000, 4000});
  local.placement = {0, 1};
  const MicroBatchCost apart = cost_of(models, local, "per-document");
  CHECK(apart.forward[0].syncs() == 0);
  CHECK(apart.kv_sent_tokens == 0);
  MicroBatch mixed = documents({4000, 4000, 8000});
  mixed.placement = {0, 1, kDistributed};
  const MicroBatchCost both = cost_of(models, mixed, "per-document");
  REQUIRE(both.forward[0].syncs() == 1);
  CHECK(both.forward[0].overlap[0] > 0);
  CHECK(both.forward[0].overlap[1] > 0);
  CHECK(both.kv_sent_tokens == 8000);  // each rank receives the other's half of the distributed document
}

TEST_CASE("One rank, and ranks that have all tokens of their heads, call a kernel on whole documents") {
  const auto attention = [](int context, ContextComm form, const char* shard) {
    const Models models(builtin_model("llama3.1-8b"), context_parallel(context, form));
    const MicroBatchCost cost = cost_of(models, documents({9000, 300, 41}), shard);
    return std::pair(cost.attention_forward[0].back(), cost.attention_backward[0].back());
  };
  const auto whole = [](int shares) {
    const Models models(builtin_model("llama3.1-8b"), context_parallel(shares, ContextComm::ulysses));
    const QueryKeys documents[] = {{9000, 9000}, {300, 300}, {41, 41}};
    RangeUse use;
    const auto times = models.costs.attention.times(documents, use, 0, shares);
    return std::pair(times.forward, times.backward);
  };
  for (const char* shard : {"per-document", "striped", "contiguous", "heap-dispatch"}) {
    CAPTURE(shard);
    CHECK(attention(1, ContextComm::all_gather, shard) == whole(1));
    CHECK(attention(4, ContextComm::ulysses, shard) == whole(4));
  }
}

TEST_CASE("Recompute: full is a forward and a backward, selective repeats the attention") {
  const MicroBatch micro_batch = documents({6000, 2000});
  const Models none(builtin_model("wlb-550m"), context_parallel(1));
  const MicroBatchCost plain = cost_of(none, micro_batch, "per-sequence");
  CHECK(once(plain.full[0]) == once(plain.forward[0]) + once(plain.backward[0]));
  Layout layout = context_parallel(1);
  layout.recompute = Recompute::selective;
  const Models some(builtin_model("wlb-550m"), layout);
  const MicroBatchCost selective = cost_of(some, micro_batch, "per-sequence");
  CHECK(once(selective.forward[0]) == once(plain.forward[0]));
  CHECK(once(selective.backward[0]) == once(plain.backward[0]) + plain.attention_forward[0][0]);
  CHECK(selective.recomputed[0] == plain.attention_forward[0][0]);
}

TEST_CASE("A backward split in two halves is the whole, less what its collectives hid under the second") {
  const MicroBatch micro_batch = documents({6000, 2000});
  const Models models(builtin_model("wlb-550m"), context_parallel(1));  // TP 1: nothing to hide
  const MicroBatchCost cost = cost_of(models, micro_batch, "per-sequence");
  CHECK(once(cost.input_gradient[0]) + cost.weight_gradient[0][0] == once(cost.backward[0]));
}

TEST_CASE("Optimal sharding is never slower than per-sequence or per-document; adaptive is one of them") {
  SplitMix64 random(2);
  const Models models(builtin_model("wlb-550m"), context_parallel(4));
  ShardRule optimal = shard_by("per-sequence"), adaptive = optimal;
  optimal.choice = ShardChoice::optimal;
  adaptive.choice = ShardChoice::adaptive;
  MicroBatchCoster best(models.costs, optimal), chosen(models.costs, adaptive);
  for (int round = 0; round < 30; ++round) {
    MicroBatch micro_batch;
    for (std::uint64_t n = 1 + random.next() % 8; n > 0; --n)
      micro_batch.slices.push_back(
          {static_cast<std::int64_t>(n), 0, static_cast<std::int64_t>(1 + random.next() % 20000)});
    MicroBatchCost a, b;
    best.cost(micro_batch, 4, a);
    chosen.cost(micro_batch, 4, b);
    // The model's way forward and back, all ranks starting together.
    const int layers = models.costs.model().layers;
    const auto total = [&](const MicroBatchCost& c) {
      std::vector<Picoseconds> clock = c.embed_forward.total;
      const auto add = [&clock](const EndCost& end) {
        for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += end.total[r];
      };
      advance(c.forward[0], layers, clock);
      add(c.head_forward);
      add(c.head_backward);
      advance(c.backward[0], layers, clock);
      add(c.embed_backward);
      return *std::max_element(clock.begin(), clock.end());
    };
    const Picoseconds sequence = total(cost_of(models, micro_batch, "per-sequence"));
    const Picoseconds document = total(cost_of(models, micro_batch, "per-document"));
    REQUIRE(total(a) == std::min(sequence, document));
    REQUIRE((total(b) == sequence || total(b) == document));
  }
}

TEST_CASE("Ulysses shares heads out at any CP degree that divides them, not at powers of two only") {
  // 28 query heads: at CP 7 a rank has 4 of them, at CP 4 it has 7, over all 64K tokens.
  const MicroBatch micro_batch = documents({65536});
  const auto gpu_seconds = [&](int context) {
    const Models models(builtin_model("qwen2.5-7b"), context_parallel(context, ContextComm::ulysses));
    const MicroBatchCost cost = cost_of(models, micro_batch, "per-document");
    return to_seconds(cost.attention_forward[0].front()) * context;
  };
  CHECK(gpu_seconds(7) == doctest::Approx(gpu_seconds(4)).epsilon(0.05));
  CHECK(gpu_seconds(7) == doctest::Approx(gpu_seconds(2)).epsilon(0.05));
}

TEST_CASE(
    "Ulysses refuses a CP group that its heads cannot be dealt to, though the layout's degree is fine") {
  const Models models(builtin_model("qwen2.5-7b"), context_parallel(4, ContextComm::ulysses));
  const ShardRule rule = shard_by("per-document");
  MicroBatchCoster coster(models.costs, rule);
  MicroBatchCost cost;
  CHECK_THROWS_WITH_AS(coster.cost(documents({65536}), 8, cost),
                       "a CP group of 8 ranks: allowed are a divisor of the 28 query heads of a TP rank "
                       "(context_comm ulysses)",
                       UserError);
}

TEST_CASE("Documents of a rank count, whole or cut; their RoPE waits for a host that has read lengths") {
  FrameworkOptions eager;
  eager.fused_rope = false;
  const MicroBatch three = documents({4096, 2048, 2048});
  for (const int context : {1, 2}) {
    const Models models(builtin_model("llama3.1-8b"), context_parallel(context), eager);
    for (const char* shard : {"per-document", "per-sequence"}) {
      CAPTURE(shard);
      std::vector<HeldByHalf> held;
      count_held(models.costs.basis, three, cost_of(models, three, shard).sharding, held);
      // Rank 0 of 2 has the first and the last quarter of the sequence, rank 1 what lies between.
      const bool cut = context > 1 && shard == std::string("per-sequence");
      for (const HeldByHalf& of_rank : held) {
        CHECK(of_rank[0] == Held{8192 / context, cut ? 2 : 3});
        CHECK(of_rank[1].tokens == 0);
      }
    }
  }
  // A host that takes twice as long for each as the GPU: a forward takes longer by its time for RoPE
  // less that of the GPU, whatever else the GPU has to do.
  const Models ready(builtin_model("llama3.1-8b"), context_parallel(1), eager);
  RangeUse use;
  OpList before, after;
  ready.costs.layers.forward(LayerKind::dense, 8192, {}, before, after, use, 3);
  const Issued rope = behind_lengths(ready.costs.host(), before.ops());
  CHECK(rope.launches == 2 * (4 + 3 * 12));
  const Picoseconds launch = rope.busy / rope.launches * 2;  // too short for all else to wait
  eager.host.seconds_per_launch = to_seconds(launch);
  const Models slow(builtin_model("llama3.1-8b"), context_parallel(1), eager);
  const auto forward = [&](const Models& models) {
    return once(cost_of(models, three, "per-document").forward[0]);
  };
  CHECK(forward(slow) - forward(ready) == rope.launches * launch - rope.busy);
}
