#include <doctest/doctest.h>

#include <cmath>

#include "policies/base/text.h"
#include "sim/validation/figures.h"
#include "tests/sim/validation/hand_pairs.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("Errors of steps and which limit they break") {
  const ValidationFigures figures = figures_of(two_policies());
  REQUIRE(figures.policies.size() == 2);
  const PolicyFigures& a = figures.policies[0];
  CHECK(a.predicted_seconds == doctest::Approx(1.53));
  CHECK(a.measured_seconds == doctest::Approx(1.5));
  CHECK(a.errors.error() == doctest::Approx(0.02));
  CHECK(a.errors.mean_abs == doctest::Approx(0.02));
  CHECK(a.within_limit);
  CHECK(!a.noise_seconds);
  CHECK(a.runs == 4);
  CHECK(a.dropped_runs == 1);
  CHECK(figures.policies[1].errors.error() == doctest::Approx(-0.1));
  CHECK(!figures.policies[1].within_limit);
  CHECK(figures.broken == std::vector<std::string>{"step of b: -10.0 %, beyond 5.0 %"});
  CHECK(!figures.passed());
  Validation wide = two_policies();
  wide.limits.step = 0.11;
  CHECK(figures_of(wide).passed());
}

TEST_CASE("Errors of opposite sign cancel in a step's time, not in its mean absolute error") {
  Validation v;
  v.policies = {{"a", {{0, 1.2, {1.0}, 0}, {7, 0.8, {1.0}, 0}, {9, 5, {}, 0}}, 0, 0}};
  const PolicyFigures p = figures_of(v).policies[0];
  CHECK(p.steps.size() == 2);  // the third was not measured
  CHECK(p.errors.error() == doctest::Approx(0));
  CHECK(p.errors.mean_abs == doctest::Approx(0.2));
  CHECK(p.errors.mean == doctest::Approx(0));
  CHECK(p.errors.worst == doctest::Approx(0.2));
  CHECK(p.steps[p.errors.worst_at].step == 0);
}

TEST_CASE("An op kind is judged by its error by time; single ops are shown as well") {
  // Sums: 11 against 10, +10%. Single: +100% and 0%, so a mean of 50%.
  Validation v = two_policies();
  v.policies.pop_back();
  v.ops = {op("gemm", 0, 2, {1, 1, 1}), op("gemm", 1, 9, {9, 8, 100}), op("rope", 0, 1, {1}),
           op("rope", 0, 1, {})};
  const ValidationFigures figures = figures_of(v);
  REQUIRE(figures.ops.size() == 2);
  const OpFigures& gemm = figures.ops[0];  // the most time first
  CHECK(gemm.op == "gemm");
  CHECK(gemm.errors.count == 2);
  CHECK(gemm.errors.error() == doctest::Approx(0.1));
  CHECK(gemm.errors.mean_abs == doctest::Approx(0.5));
  CHECK(gemm.errors.mean == doctest::Approx(0.5));
  CHECK(gemm.errors.worst == doctest::Approx(1.0));
  CHECK(gemm.worst.micro_batch == 0);
  CHECK(gemm.worst.stage == 1);
  CHECK(gemm.worst.measured_seconds == std::vector<double>{1});
  CHECK(!gemm.within_limit);
  CHECK(figures.broken == std::vector<std::string>{"op gemm: +10.0 %, beyond 8.0 %"});
  CHECK(figures.unmeasured_ops == 1);
  v.limits.op = 0.11;
  CHECK(figures_of(v).passed());
}

TEST_CASE("A micro-batch is all its ops, over stages and ranks; what has none is in none") {
  Validation v = two_policies();
  OpPair other_stage = op("attention", 0, 1, {3});
  other_stage.stage = 0;
  OpPair optimizer = op("optimizer", -1, 50, {1});
  v.ops = {op("gemm", 0, 2, {1}), other_stage, op("gemm", 1, 3, {2}), optimizer};
  const ValidationFigures figures = figures_of(v);
  // Micro-batch 0: 3 against 4, -25%; 1: 3 against 2, +50%.
  CHECK(figures.micro_batches.count == 2);
  CHECK(figures.micro_batches.mean_abs == doctest::Approx(0.375));
  CHECK(figures.micro_batches.mean == doctest::Approx(0.125));
  REQUIRE(figures.worst_micro_batches.size() == 2);
  CHECK(figures.worst_micro_batches[0].micro_batch == 1);
  CHECK(figures.worst_micro_batches[1].error() == doctest::Approx(-0.25));
}

TEST_CASE("A few worst micro-batches are kept") {
  Validation v = two_policies();
  for (int m = 0; m < 20; ++m) v.ops.push_back(op("gemm", m, 1 + m, {1}));
  const ValidationFigures figures = figures_of(v);
  CHECK(figures.micro_batches.count == 20);
  CHECK(figures.worst_micro_batches.size() == 5);
  CHECK(figures.worst_micro_batches[0].micro_batch == 19);
}

TEST_CASE("Policies rank alike unless the measurement tells an order and the prediction the other") {
  Validation v;
  v.limits.step = 10;
  const auto policy = [](const char* label, double predicted, std::vector<double> measured) {
    return PolicyPairs{label, {{0, predicted, std::move(measured), 0}}, 0, 0};
  };
  SUBCASE("the same") {
    v.policies = {policy("slow", 3, {2}), policy("fast", 1, {1})};
    const Ranking ranking = figures_of(v).ranking;
    CHECK(ranking.predicted == std::vector<std::string>{"fast", "slow"});
    CHECK(ranking.measured == ranking.predicted);
    CHECK(ranking.same());
  }
  SUBCASE("swapped") {
    v.policies = {policy("a", 3, {1}), policy("b", 1, {2})};
    const ValidationFigures figures = figures_of(v);
    CHECK(!figures.ranking.same());
    CHECK(!figures.passed());
    CHECK(figures.broken.back() == "ranking: a is measured faster than b and predicted slower");
  }
  SUBCASE("closer than the noise of both: no order, whatever is predicted") {
    // Noise 3/8 and 4/8, together 5/8: medians 1 and 1 5/8 are tied, 1 and 1 11/16 are not.
    v.policies = {policy("a", 3, {0.625, 1.375}), policy("b", 1, {1.125, 2.125})};
    const Ranking tied = figures_of(v).ranking;
    CHECK(tied.same());
    CHECK(tied.ties.size() == 1);
    v.policies[1].steps[0].measured_seconds = {1.1875, 2.1875};
    CHECK(!figures_of(v).ranking.same());
  }
  SUBCASE("seconds a token where all tokens are known") {
    // A step of b takes longer and has four times the tokens.
    v.policies = {policy("a", 1, {1}), policy("b", 2, {2})};
    v.policies[0].steps[0].tokens = 100;
    CHECK(figures_of(v).ranking.measured == std::vector<std::string>{"a", "b"});
    v.policies[1].steps[0].tokens = 400;
    const Ranking ranking = figures_of(v).ranking;
    CHECK(ranking.per_token);
    CHECK(ranking.measured == std::vector<std::string>{"b", "a"});
    CHECK(ranking.predicted == ranking.measured);
  }
}

TEST_CASE("Nothing measured is no success, and no number either") {
  Validation v;
  CHECK(figures_of(v).broken == std::vector<std::string>{"nothing was measured"});
  v.policies = {{"a", {{0, 1, {}, 0}}, 0, 0}};
  CHECK(!figures_of(v).passed());
  v = two_policies();
  v.policies[0].steps[0].predicted_seconds = std::nan("");
  CHECK(!figures_of(v).passed());
}

TEST_CASE("an error is shown with its sign") {
  CHECK(signed_percent(0.0321) == "+3.2 %");
  CHECK(signed_percent(-0.5, 0) == "-50 %");
  CHECK(counted(1, "step") + ", " + counted(1234U, "batch") + ", " + counted(0, "entry") ==
        "1 step, 1,234 batches, 0 entries");
  CHECK(signed_percent(std::nan("")) == "-");
}
