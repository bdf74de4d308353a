// The busiest rank of experts, drawn by micro-batch.
#include <doctest/doctest.h>

#include <cmath>

#include "sim/cost/expert_load.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct Moments {
  double mean = 0, deviation = 0;
};

// Moments of the load of micro-batches of `documents` equal documents each.
Moments loads(RouterSkew skew, int ranks, int experts_of_rank, int documents, int draws = 4000) {
  double sum = 0, squares = 0;
  for (int i = 0; i < draws; ++i) {
    MicroBatch micro_batch;
    for (int d = 0; d < documents; ++d)
      micro_batch.slices.push_back({std::int64_t{i} * documents + d, 0, 100});
    const double load = expert_load(micro_batch, skew, ranks, experts_of_rank);
    CHECK(load >= 1);
    CHECK(load <= ranks);
    sum += load;
    squares += load * load;
  }
  const double mean = sum / draws;
  return {mean, std::sqrt(std::max(0.0, squares / draws - mean * mean))};
}

}  // namespace

TEST_CASE(
    "A balanced router, one rank and an empty micro-batch have a load of 1; draws depend on their seed "
    "alone") {
  CHECK(expert_load(documents({100, 200}), {0, 1}, 8, 16) == 1);
  CHECK(expert_load(documents({100, 200}), {1e-200, 1}, 8, 16) == 1);
  CHECK(expert_load(documents({100, 200}), {1, 1}, 1, 128) == 1);
  CHECK(expert_load(MicroBatch{}, {1, 1}, 8, 16) == 1);
  const double load = expert_load(documents({100, 200}), {1, 1}, 8, 16);
  CHECK(load > 1);
  CHECK(expert_load(documents({100, 200}), {1, 1}, 8, 16) == load);
  CHECK(expert_load(documents({100, 200}), {1, 2}, 8, 16) != load);
  CHECK(expert_load(documents({100, 200}, 7), {1, 1}, 8, 16) != load);
  // Twice as many tokens of each document: the same shares.
  CHECK(expert_load(documents({200, 400}), {1, 1}, 8, 16) == doctest::Approx(load).epsilon(1e-12));
}

TEST_CASE("Two ranks: the busiest has twice the larger share, x and y gamma distributed") {
  // One expert each, skew 1: x and y are exponential, x / (x + y) is uniform, the larger share has a mean of
  // 3/4 and a deviation of 1 / sqrt(48): a load of 1.5 +- 0.289. Standard error of 4000 draws: 0.0046.
  const Moments one = loads({1, 3}, 2, 1, 1);
  CHECK(std::abs(one.mean - 1.5) < 5 * 0.0046);
  CHECK(std::abs(one.deviation - 2 / std::sqrt(48.0)) < 0.02);
}

TEST_CASE("Many experts a rank, many documents and little skew even out by the root of their number") {
  // Near balance a rank's share is normal with deviation s = skew / sqrt(experts x documents); of 8 ranks the
  // largest lies 1.4236 s above their mean.
  for (const auto& of : {std::tuple{0.2, 16, 1}, std::tuple{0.4, 16, 4}, std::tuple{0.2, 4, 4}}) {
    const double skew = std::get<0>(of);
    const int experts = std::get<1>(of), documents = std::get<2>(of);
    CAPTURE(experts);
    CAPTURE(documents);
    const double s = skew / std::sqrt(experts * documents);
    const Moments found = loads({skew, 11}, 8, experts, documents);
    CHECK(found.mean - 1 == doctest::Approx(1.4236 * s).epsilon(0.05));
  }
}

TEST_CASE("A skewed router makes a layer with experts slower by its busiest rank, and no other layer") {
  Layout layout;
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  const ModelShape& model = builtin_model("deepseek-v2");
  const Models balanced(model, layout, framework);
  framework.expert_skew = 1;
  const Models skewed(model, layout, framework);
  const MicroBatch micro_batch = documents({4096});
  const double load = skewed.costs.experts.load(micro_batch);
  REQUIRE(load > 1.01);
  CHECK(balanced.costs.experts.load(micro_batch) == 1);
  framework = {};
  framework.expert_imbalance = load;
  const Models constant(model, layout, framework);
  const ShardRule rule = shard_by("per-document");
  MicroBatchCost by_skew, by_constant, by_none;
  MicroBatchCoster(skewed.costs, rule).cost(micro_batch, 1, by_skew);
  MicroBatchCoster(constant.costs, rule).cost(micro_batch, 1, by_constant);
  MicroBatchCoster(balanced.costs, rule).cost(micro_batch, 1, by_none);
  constexpr auto kMoe = static_cast<std::size_t>(LayerKind::moe),
                 kDense = static_cast<std::size_t>(LayerKind::dense);
  CHECK(by_skew.forward[kMoe] == by_constant.forward[kMoe]);
  CHECK(by_skew.backward[kMoe] == by_constant.backward[kMoe]);
  CHECK(by_skew.forward[kMoe].local[0] > by_none.forward[kMoe].local[0]);
  CHECK(by_skew.forward[kDense] == by_none.forward[kDense]);
}

TEST_CASE("A router's own loads are those that are published of its kind") {
  const auto alone = [](ExpertRouter router) { return router_load(router_spread(router), 7, 64, 1); };
  CHECK(alone(ExpertRouter::stated) == 1);
  CHECK(alone(ExpertRouter::loss_free) == doctest::Approx(1.04).epsilon(0.005));
  CHECK(alone(ExpertRouter::auxiliary_loss) > 1.52);  // of two sizes of model
  CHECK(alone(ExpertRouter::auxiliary_loss) < 1.72);
  // Ranks with more experts are more alike; one has all of them.
  const double spread = router_spread(ExpertRouter::unbalanced);
  CHECK(router_load(spread, 7, 8, 1) > router_load(spread, 7, 8, 2));
  CHECK(router_load(spread, 7, 8, 16) > 1);
  CHECK(router_load(spread, 7, 1, 8) == 1);
  // It stays where micro-batches are packed together, times what documents draw; none where experts are
  // filled up.
  Layout layout;
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  framework.expert_router = ExpertRouter::auxiliary_loss;
  const Models models(builtin_model("deepseek-v2"), layout, framework);
  const double load = router_load(router_spread(framework.expert_router), 0, 8, 160 / 8);
  CHECK(models.costs.experts.load(documents({4096})) == load);
  CHECK(models.costs.experts.load(documents({1024, 1024, 2048})) == load);
  framework.expert_capacity_factor = 1;
  CHECK(Models(builtin_model("deepseek-v2"), layout, framework).costs.experts.load(documents({4096})) == 1);
}
