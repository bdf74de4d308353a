// What arrives at the experts of lanes that share them: by hand, and what holds for every step.
#include <doctest/doctest.h>

#include <algorithm>

#include "policies/base/random.h"
#include "sim/step/lockstep.h"
#include "sim/step/lockstep_costs.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

ModelShape model_with_experts(int layers, int shared_ffn = 0) {
  ModelShape model = model_of(layers);
  model.moe = MoeShape{.experts = 8, .active = 2, .expert_ffn = 64};
  model.moe->shared_ffn = shared_ffn;
  return model;
}

Layout layout_of(int tensor, int context, int data, int pipeline, int expert, int expert_tensor = 0) {
  Layout layout = pipeline_of(pipeline);
  layout.tensor = tensor;
  layout.context = context;
  layout.data = data;
  layout.expert = expert;
  layout.expert_tensor = expert_tensor;
  return layout;
}

// The lockstep groups of a step, with all their costs.
struct Met {
  Met(const ModelShape& model, const Layout& layout, const Step& step, const char* schedule,
      FrameworkOptions framework = {}, ShardChoice choice = ShardChoice::fixed)
      : models(model, layout, framework), orders(model, layout) {
    rule.choice = choice;
    StepOptions options;
    options.schedule = &schedule_policy(schedule);
    groups = make_lockstep_groups(step, 0, layout, models.grid, options);
    MicroBatchCoster coster(models.costs, rule);
    for (LockstepGroup& group : groups)
      costs.push_back(cost_lockstep_group(group, coster, models.costs, orders));
  }
  Models models;
  PartOrders orders;
  ShardRule rule = shard_by("per-document");
  std::vector<LockstepGroup> groups;
  std::vector<std::vector<std::vector<MicroBatchCost>>> costs;  // by group, lane, entry
};

// Tokens that arrive with each op of a lane on its first CP rank, stage 0.
std::vector<double> arriving(const LockstepLane& lane) {
  std::vector<double> tokens;
  for (std::size_t i = 0; i < lane.schedule.ops[0].size(); ++i) {
    const std::size_t entry = lane.arrivals.entry_of(lane.schedule.ops[0][i], 0, i);
    tokens.push_back(lane.arrivals.entries[entry].arriving[0].tokens);
  }
  return tokens;
}

double flops_of(const OpList& list, OpName name) {
  double sum = 0;
  for (const Op& op : list.ops())
    if (op.name == name) sum += op.flops;
  return sum;
}

constexpr auto kMoe = static_cast<std::size_t>(LayerKind::moe);

}  // namespace

TEST_CASE(
    "Two lanes by hand: the mean of 1,000 and 5,000 tokens, then half of 3,000 where only one lane is left") {
  Step step;
  step.lanes.resize(2);
  step.lanes[0].micro_batches = {documents({1000}), documents({3000}, 1)};
  step.lanes[1].micro_batches = {documents({5000}, 2)};
  FrameworkOptions framework;
  framework.seconds_per_op = 0;  // the GPU never runs dry
  const Met met(model_with_experts(1), layout_of(1, 1, 2, 1, 2), step, "1f1b", framework);
  REQUIRE(met.groups.size() == 1);
  const std::vector<LockstepLane>& lanes = met.groups[0].lanes;
  REQUIRE(lanes.size() == 2);
  // F1 B1 F2 B2 on the first lane; F1 B1 and two ops without documents on the second.
  const std::vector<double> mean{3000, 3000, 1500, 1500};
  CHECK(arriving(lanes[0]) == mean);
  CHECK(arriving(lanes[1]) == mean);
  CHECK(lanes[0].arrivals.entries.size() == 2);
  CHECK(lanes[0].arrivals.entries[0].arriving[0].load == 1);
  // A layer does 1,000 tokens' own work on the first rank, and the experts' of 3,000: a forward's time is
  // what the local ops of both say.
  OpList before, after;
  RangeUse use;
  const LayerCosts& prices = met.models.costs;
  prices.layers.forward(LayerKind::moe, 1000, {3000, 3000}, before, after, use);
  const MicroBatchCost& first = met.costs[0][0][0];
  CHECK(first.forward[kMoe].local[0] ==
        run_time(before.ops()).total + run_time(after.ops()).total + first.attention_forward[0][0]);
  // 4 experts a rank, 3,000 x 2 copies, 1,500 each: 2 x 4 x 1,500 x 64 x (128 up + 64 down).
  CHECK(flops_of(after, OpName::expert_gemm) == 2.0 * 4 * 1500 * 64 * (128 + 64));
  CHECK(flops_of(after, OpName::router) == 2.0 * 1000 * 8 * 64);
  // The lane that has no second micro-batch works for the other's: the experts' part and nothing else.
  prices.layers.forward(LayerKind::moe, 0, {1500, 1500}, before, after, use);
  CHECK(before.size() == 0);
  CHECK(flops_of(after, OpName::expert_gemm) == 2.0 * 4 * 750 * 64 * (128 + 64));
  CHECK(flops_of(after, OpName::router) == 0);
  CHECK(flops_of(after, OpName::out_gemm) == 0);
  const MicroBatchCost& empty = met.costs[0][1][1];
  CHECK(empty.forward[kMoe].local[0] == run_time(after.ops()).total);
  CHECK(empty.forward[kMoe].local[0] > 0);
  CHECK(empty.embed_forward.total[0] == 0);
}

TEST_CASE("A layer that only one of two lanes recomputes is recomputed for half of its tokens on each") {
  Step step;
  step.lanes.resize(2);
  for (int l = 0; l < 2; ++l) step.lanes[at(l)].micro_batches = {documents({2000}, l)};
  step.lanes[0].micro_batches[0].recompute_layers = 2;
  step.lanes[1].micro_batches[0].recompute_layers = 1;
  const Met met(model_with_experts(3), layout_of(1, 1, 2, 1, 2), step, "1f1b");
  for (const LockstepLane& lane : met.groups[0].lanes) {
    CHECK(arriving(lane) == std::vector<double>{2000, 2000});
    const std::vector<std::int32_t>* again = lane.arrivals.again_of(0, 1);
    REQUIRE(again != nullptr);
    REQUIRE(again->size() == 2);
    const auto entry = [&](std::size_t layer) { return lane.arrivals.entries[at((*again)[layer])]; };
    CHECK(entry(0) == lane.arrivals.entries[0]);
    CHECK(entry(1).micro_batch == (lane.lane == 0 ? 0 : -1));
    CHECK(entry(1).arriving[0].tokens == 1000);
  }
}

TEST_CASE(
    "A lane without micro-batches works outside of the step: its ranks take their share of what is sent") {
  Step step;
  step.lanes.resize(4);
  step.lanes[1].micro_batches = {documents({4000})};
  const Met met(model_with_experts(1), layout_of(1, 1, 4, 1, 4), step, "1f1b");
  REQUIRE(met.groups[0].lanes.size() == 1);
  CHECK(arriving(met.groups[0].lanes[0]) == std::vector<double>{1000, 1000});
}

TEST_CASE("Equal micro-batches cost what they cost alone, bit by bit") {
  for (const int expert_tensor : {1, 2})
    for (const char* schedule : {"1f1b", "zb-h1", "gpipe"}) {
      Step step;
      step.lanes.resize(4);
      for (std::size_t l = 0; l < 4; ++l) {
        step.lanes[l].context = 2;
        for (int j = 0; j < 5; ++j)
          step.lanes[l].micro_batches.push_back(
              documents({1001, 777}, static_cast<std::int64_t>(10 * l) + 2 * j));
      }
      FrameworkOptions framework;
      framework.expert_imbalance = 1.37;
      const Met met(model_with_experts(5, 64), layout_of(2, 2, 4, 2, 4, expert_tensor), step, schedule,
                    framework);
      for (std::size_t g = 0; g < met.groups.size(); ++g)
        for (std::size_t l = 0; l < met.groups[g].lanes.size(); ++l) {
          const LockstepLane& lane = met.groups[g].lanes[l];
          CHECK(lane.arrivals.entries.size() == lane.micro_batches.size());
          MicroBatchCoster alone(met.models.costs, met.rule);
          MicroBatchCost cost;
          for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
            alone.cost(lane.micro_batches[j], 2, cost);
            CHECK(met.costs[g][l][j] == cost);
          }
        }
    }
}

TEST_CASE("However a sharding rule is chosen, lanes that bring the same cost what they cost alone") {
  for (const ShardChoice choice : {ShardChoice::adaptive, ShardChoice::optimal})
    for (const int expert : {1, 4}) {
      Step step;
      step.lanes.resize(4);
      for (std::size_t l = 0; l < 4; ++l) {
        step.lanes[l].context = 4;
        for (int j = 0; j < 6; ++j)
          step.lanes[l].micro_batches.push_back(documents({9000 + 700 * j, 120, 4000 - 500 * j, 90},
                                                          static_cast<std::int64_t>(100 * l) + 4 * j));
      }
      Layout layout = layout_of(1, 4, 4, 1, expert);
      layout.zero = 2;
      const Met met(model_with_experts(2), layout, step, "1f1b", {}, choice);
      REQUIRE(met.groups.size() == 1);
      MicroBatchCoster alone(met.models.costs, met.rule);
      for (std::size_t l = 0; l < met.groups[0].lanes.size(); ++l)
        for (std::size_t j = 0; j < step.lanes[l].micro_batches.size(); ++j) {
          // Arrivals are the mean of all ranks; alone, those of a rank are what it sends.
          MicroBatchCost cost;
          alone.cost(step.lanes[l].micro_batches[j], 4, cost);
          const MicroBatchCost& of_lane = met.costs[0][l][j];
          CHECK(of_lane.sharding.chosen == cost.sharding.chosen);
          CHECK(of_lane.attention_forward == cost.attention_forward);
          CHECK(of_lane.attention_backward == cost.attention_backward);
          if (of_lane.arriving == cost.arriving) CHECK(of_lane == cost);
        }
    }
}

namespace {

// Lanes of unequal micro-batches and unequal numbers of them, some without any, some recomputing on their
// own.
struct RandomPacks {
  explicit RandomPacks(std::uint64_t seed) {
    SplitMix64 random(seed * 77 + 3);
    const auto below = [&](std::uint64_t n) { return static_cast<int>(random.next() % n); };
    static constexpr const char* kSchedules[] = {"1f1b", "gpipe", "zb-h1", "state-aware-1f1b"};
    schedule = kSchedules[below(4)];
    const int tensor = 1 << below(2);
    layout = layout_of(tensor, 1 << below(3), 1 << below(3), 1 << below(2), 0, below(2) == 0 ? 1 : tensor);
    layout.zero = below(4) == 0 ? 2 : 1;
    const int ranks = tensor / layout.expert_tensor * layout.data * layout.context;
    layout.expert = std::max(1, ranks >> below(3));
    if (layout.expert > 8) layout.expert = 8;
    const bool chunks = std::string_view(schedule) == "state-aware-1f1b" && layout.pipeline == 1;
    std::int64_t document = 0;
    for (int l = 0; l < layout.data; ++l) {
      Lane& lane = step.lanes.emplace_back();
      lane.context = layout.context;
      for (int n = below(5); n > 0; --n) {
        MicroBatch micro_batch;
        for (int d = below(4); d > 0; --d) micro_batch.slices.push_back({document++, 0, below(3000) + 1});
        if (below(3) == 0) micro_batch.recompute_layers = below(7);
        lane.micro_batches.push_back(micro_batch);
      }
      for (int i = 0; chunks && i < 2; ++i) {
        MicroBatch& chunk = lane.micro_batches.emplace_back();
        chunk.slices = {{document, i * 512, (i + 1) * 512}};
        chunk.chunk = {document, i, 2, 0};
      }
      ++document;
    }
  }
  const char* schedule;
  Layout layout;
  Step step;
};

// What the lanes of a lockstep group send in an op, and what arrives there on all ranks of their expert
// groups.
struct Traffic {
  std::vector<double> sent, arrived;  // by expert group, in tokens of an expert's tensor-parallel rank
};

Traffic traffic_of(const LockstepGroup& group, const LayerCosts& costs,
                   const std::vector<std::vector<MicroBatchCost>>& of_lanes,
                   const std::vector<std::size_t>& entries) {
  Traffic traffic{std::vector<double>(at(group.expert_groups)), std::vector<double>(at(group.expert_groups))};
  for (std::size_t l = 0; l < group.lanes.size(); ++l)
    for (std::size_t r = 0; r < group.lanes[l].expert_group.size(); ++r) {
      const std::size_t g = at(group.lanes[l].expert_group[r]);
      const MicroBatchCost& cost = of_lanes[l][entries[l]];
      traffic.sent[g] += costs.experts.sent_to_experts(cost.sharding.rank_tokens[r]).tokens;
      traffic.arrived[g] =
          cost.arriving[r].tokens * group.group_places[g];  // as much on ranks outside of the step
    }
  return traffic;
}

}  // namespace

TEST_CASE("In every op of random packs as many tokens arrive on the ranks of an expert group as they send") {
  int unequal = 0, elsewhere = 0, again = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const RandomPacks packs(seed);
    CAPTURE(seed);
    CAPTURE(packs.schedule);
    const Met met(model_with_experts(6), packs.layout, packs.step, packs.schedule);
    if (packs.layout.expert == 1) continue;
    for (std::size_t g = 0; g < met.groups.size(); ++g) {
      const LockstepGroup& group = met.groups[g];
      const auto check = [&](const std::vector<std::size_t>& entries) {
        const Traffic traffic = traffic_of(group, met.models.costs, met.costs[g], entries);
        for (std::size_t e = 0; e < traffic.sent.size(); ++e)
          CHECK(traffic.arrived[e] == doctest::Approx(traffic.sent[e]).epsilon(1e-12));
        // All ranks of a group get the same.
        for (std::size_t l = 0; l < group.lanes.size(); ++l)
          for (std::size_t r = 0; r < group.lanes[l].expert_group.size(); ++r)
            for (std::size_t k = 0; k < group.lanes.size(); ++k)
              for (std::size_t q = 0; q < group.lanes[k].expert_group.size(); ++q)
                if (group.lanes[l].expert_group[r] == group.lanes[k].expert_group[q])
                  CHECK(met.costs[g][l][entries[l]].arriving[r] == met.costs[g][k][entries[k]].arriving[q]);
      };
      const Schedule& first = group.lanes.front().schedule;
      for (std::size_t s = 0; s < first.ops.size(); ++s)
        for (std::size_t i = 0; i < first.ops[s].size(); ++i) {
          std::vector<std::size_t> entries;
          for (const LockstepLane& lane : group.lanes)
            entries.push_back(lane.arrivals.entry_of(lane.schedule.ops[s][i], static_cast<int>(s), i));
          check(entries);
          const std::vector<std::int32_t>* layers =
              group.lanes.front().arrivals.again_of(static_cast<int>(s), i);
          for (std::size_t k = 0; layers != nullptr && k < layers->size(); ++k, ++again) {
            for (std::size_t l = 0; l < entries.size(); ++l)
              entries[l] = at((*group.lanes[l].arrivals.again_of(static_cast<int>(s), i))[k]);
            check(entries);
          }
        }
      for (std::size_t l = 0; l < group.lanes.size(); ++l) {
        const LaneArrivals& arrivals = group.lanes[l].arrivals;
        elsewhere += arrivals.entries.size() > group.lanes[l].micro_batches.size() ? 1 : 0;
        for (const MicroBatchCost& cost : met.costs[g][l])
          for (std::size_t r = 0; r < cost.arriving.size(); ++r)
            unequal +=
                cost.arriving[r] == met.models.costs.experts.sent_to_experts(cost.sharding.rank_tokens[r])
                    ? 0
                    : 1;
      }
    }
  }
  CHECK(unequal > 500);
  CHECK(elsewhere > 5);
  CHECK(again > 20);
}

TEST_CASE("Lanes that share experts draw one load, of all documents that meet") {
  Step step;
  step.lanes.resize(2);
  step.lanes[0].micro_batches = {documents({1000, 500})};
  step.lanes[1].micro_batches = {documents({2000}, 2)};
  FrameworkOptions framework;
  framework.expert_skew = 0.7;
  const Met met(model_with_experts(1), layout_of(1, 1, 2, 1, 2), step, "1f1b", framework);
  const double load = met.groups[0].lanes[0].arrivals.entries[0].arriving[0].load;
  const MicroBatch all = documents({1000, 500, 2000});
  const MicroBatch* const together = &all;
  CHECK(load > 1);
  CHECK(load == met.models.costs.experts.load(std::span(&together, 1)));
  CHECK(met.groups[0].lanes[1].arrivals.entries[0].arriving[0].load == load);
}
