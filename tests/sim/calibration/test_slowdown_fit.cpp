// Fitting slowdowns to steps that are made up, so that the answer is known.
#include <doctest/doctest.h>

#include <cmath>

#include "policies/base/random.h"
#include "sim/calibration/slowdown_fit.h"

using namespace equipoise;

namespace {

// A step that spends so many seconds in each kind of kernel, and `fixed` in what no slowdown reaches.
struct Mix {
  double gemm, attention, elementwise, fixed;
  [[nodiscard]] double seconds(const Slowdowns& s) const {
    return gemm * s[0] + attention * s[1] + elementwise * s[2] + fixed;
  }
};

StepSample sample(const std::string& benchmark, const Mix& mix, double published) {
  return {benchmark, published, [mix](const Slowdowns& s) { return mix.seconds(s); }};
}

// Rows of `benchmarks` benchmarks with unlike shares of the kinds, as long as `truth` makes them.
std::vector<StepSample> made_up(int benchmarks, int rows_each, const Slowdowns& truth, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<StepSample> samples;
  for (int b = 0; b < benchmarks; ++b)
    for (int i = 0; i < rows_each; ++i) {
      const auto share = [&] { return 0.05 + static_cast<double>(random.next() % 1000) / 1000; };
      const Mix mix{3 * share(), 2 * share(), share(), 0.2 * share()};
      samples.push_back(sample("benchmark " + std::to_string(b), mix, mix.seconds(truth)));
    }
  return samples;
}

// Largest logarithm between two slowdowns.
double apart(const Slowdowns& a, const Slowdowns& b) {
  double most = 0;
  for (std::size_t k = 0; k < 3; ++k) most = std::max(most, std::abs(std::log(a[k] / b[k])));
  return most;
}

}  // namespace

TEST_CASE("Steps made with known slowdowns give them back, from any corner of the bounds") {
  // The prior pulls towards 1 with (R / P)^2 = 0.0256 against rows that each count fully: a few percent at
  // most with 60 rows, and the errors of rows stay within 1 %.
  for (const Slowdowns& truth :
       {Slowdowns{1.25, 1.5, 2.2}, Slowdowns{2.2, 1.1, 1.4}, Slowdowns{1.05, 2.8, 1.05}}) {
    const SlowdownFit fit = fit_slowdowns(made_up(6, 10, truth, 7), 1);
    CAPTURE(fit.slowdowns[0]);
    CAPTURE(fit.slowdowns[1]);
    CAPTURE(fit.slowdowns[2]);
    CHECK(fit.numbers == 3);
    CHECK(apart(fit.slowdowns, truth) < 0.05);
    for (const double e : fit.errors) CHECK(std::abs(e) < 0.01);
    REQUIRE(fit.held_out.size() == 6);
    for (const BenchmarkError& error : fit.held_out) CHECK(error.mean_abs < 0.01);
  }
}

TEST_CASE("Slowdowns stay within their bounds: kernels in training are never faster than alone") {
  // Steps a third shorter than kernels alone, or ten times as long.
  const SlowdownFit low = fit_slowdowns(made_up(5, 4, {0.7, 0.7, 0.7}, 3), 1);
  CHECK(low.slowdowns == Slowdowns{1, 1, 1});
  const SlowdownFit high = fit_slowdowns(made_up(5, 4, {10, 10, 10}, 3), 1);
  for (const double s : high.slowdowns) CHECK(s == doctest::Approx(3));
  // One kind beyond: it stays at its bound, the others make up for it as well as they can.
  const SlowdownFit one = fit_slowdowns(made_up(5, 8, {1.5, 0.8, 1.5}, 3), 1);
  CHECK(one.slowdowns[1] == 1);
  CHECK(one.slowdowns[0] > 1.2);
}

TEST_CASE("The fit is an optimum: no slowdown moved by a percent lowers its cost") {
  const std::vector<StepSample> samples = made_up(5, 6, {1.3, 1.7, 1.2}, 11);
  const SlowdownFit fit = fit_slowdowns(samples, 1);
  const auto cost = [&](const Slowdowns& s) {
    double sum = 0;
    for (const StepSample& row : samples) {
      const double e = std::log(row.seconds(s) / row.published) / kRobustScale;
      sum += 2 * kRobustScale * kRobustScale * (std::sqrt(1 + e * e) - 1);
    }
    for (const double v : s) sum += std::pow(kRobustScale * std::log(v) / kPriorDeviation, 2);
    return sum;
  };
  const double best = cost(fit.slowdowns);
  CHECK(fit.cost == doctest::Approx(best));
  for (std::size_t k = 0; k < 3; ++k)
    for (const double factor : {0.99, 1.01}) {
      Slowdowns near = fit.slowdowns;
      near[k] *= factor;
      CHECK(cost(near) > best);
    }
}

TEST_CASE(
    "A benchmark is predicted by a fit that has not seen it: its own times change nothing in that fit") {
  std::vector<StepSample> samples = made_up(5, 4, {1.3, 1.6, 1.2}, 5);
  const SlowdownFit before = fit_slowdowns(samples, 1);
  for (StepSample& row : samples)
    if (row.benchmark == "benchmark 2") row.published *= 1.5;
  const SlowdownFit after = fit_slowdowns(samples, 1);
  REQUIRE(before.held_out[2].benchmark == "benchmark 2");
  CHECK(after.held_out[2].slowdowns == before.held_out[2].slowdowns);
  CHECK(after.held_out[0].slowdowns != before.held_out[0].slowdowns);
  // Predictions stay, what is published is half as long again: (1 + e) / 1.5 - 1.
  CHECK(after.held_out[2].mean == doctest::Approx((1 + before.held_out[2].mean) / 1.5 - 1));
}

TEST_CASE("Few benchmarks cannot tell the kinds apart: one number for all three") {
  const SlowdownFit fit = fit_slowdowns(made_up(3, 4, {1.4, 1.4, 1.4}, 9), 1);
  CHECK(fit.numbers == 1);
  CHECK(fit.slowdowns[0] == fit.slowdowns[1]);
  CHECK(fit.slowdowns[0] == fit.slowdowns[2]);
  CHECK(fit.slowdowns[0] == doctest::Approx(1.4).epsilon(0.01));
  CHECK(fit_slowdowns(made_up(4, 4, {1.4, 1.4, 1.4}, 9), 1).numbers == 3);
  // With one benchmark nothing can be held out.
  CHECK(fit_slowdowns(made_up(1, 4, {1.4, 1.4, 1.4}, 9), 1).held_out.empty());
}

TEST_CASE("One misprinted row bends the rest by little") {
  std::vector<StepSample> samples = made_up(6, 10, {1.3, 1.6, 1.4}, 13);
  const SlowdownFit clean = fit_slowdowns(samples, 1);
  samples[17].published *= 3;
  CHECK(apart(fit_slowdowns(samples, 1).slowdowns, clean.slowdowns) < 0.05);
}

TEST_CASE("The fit does not depend on the number of threads") {
  const std::vector<StepSample> samples = made_up(5, 5, {1.3, 1.7, 1.2}, 21);
  const SlowdownFit one = fit_slowdowns(samples, 1), four = fit_slowdowns(samples, 4);
  CHECK(one.slowdowns == four.slowdowns);
  CHECK(one.errors == four.errors);
  CHECK(one.held_out_errors == four.held_out_errors);
}
