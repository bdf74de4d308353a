// wlb and fixed-greedy against plain O(n^2) forms of themselves; heuristics against the exact optimum of tiny
// cases.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "policies/base/index.h"
#include "policies/least_loaded.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "tests/policies/naive_packers.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

using Bins = std::vector<std::vector<Slice>>;

std::vector<std::vector<std::int64_t>> random_batches(SplitMix64& random, std::int64_t longest) {
  std::vector<std::vector<std::int64_t>> lengths(static_cast<std::size_t>(1 + below(random, 5)));
  for (auto& batch : lengths) batch = random_lengths(random, below(random, 30), longest);
  return lengths;
}

std::vector<std::vector<Slice>> slices_of(const std::vector<GlobalBatch>& batches) {
  std::vector<std::vector<Slice>> slices;
  for (const GlobalBatch& batch : batches) slices.push_back(batch.slices);
  return slices;
}

// Micro-batches of a step of one lane.
Bins bins_of(const Step& step) {
  Bins bins;
  for (const MicroBatch& micro_batch : step.lanes[0].micro_batches) bins.push_back(micro_batch.slices);
  return bins;
}

// The least possible largest sum of weights over k bins of `capacity` tokens; infinity if nothing fits.
double optimum(const std::vector<std::int64_t>& lengths, const std::vector<double>& weights, std::size_t i,
               std::int64_t capacity, std::vector<std::int64_t>& tokens, std::vector<double>& work) {
  if (i == lengths.size()) return *std::max_element(work.begin(), work.end());
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    if (tokens[b] + lengths[i] > capacity) continue;
    tokens[b] += lengths[i];
    work[b] += weights[i];
    best = std::min(best, optimum(lengths, weights, i + 1, capacity, tokens, work));
    tokens[b] -= lengths[i];
    work[b] -= weights[i];
    if (tokens[b] == 0) break;  // empty bins are alike
  }
  return best;
}

double optimum(const std::vector<std::int64_t>& lengths, std::size_t bins, std::int64_t capacity) {
  std::vector<double> weights;
  for (const std::int64_t x : lengths) weights.push_back(static_cast<double>(x * x));
  std::vector<std::int64_t> tokens(bins);
  std::vector<double> work(bins);
  return optimum(lengths, weights, 0, capacity, tokens, work);
}

double largest(const Plan& plan) {
  const std::vector<double> work = micro_batch_workloads(plan, QuadraticWorkload());
  return *std::max_element(work.begin(), work.end());
}

}  // namespace

TEST_CASE("wlb makes what Algorithm 1 written plainly makes") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options;
    options.context_window = 8 + below(random, 60);
    options.sequences_per_step = 1 + below(random, 7);
    options.of<WlbOptions>().queues = static_cast<int>(below(random, 4));
    options.max_tokens = options.context_window + below(random, options.context_window);
    const std::vector<GlobalBatch> batches = document_batches(random_batches(random, options.context_window));
    const Plan plan = plan_of("wlb", batches, options);
    const auto expected = naive::wlb(slices_of(batches), static_cast<std::size_t>(options.sequences_per_step),
                                     options.max_tokens, wlb_thresholds(options));
    REQUIRE(plan.steps.size() == expected.size());
    for (std::size_t s = 0; s < expected.size(); ++s) {
      REQUIRE(bins_of(plan.steps[s]) == expected[s].bins);
      REQUIRE(plan.steps[s].carried == expected[s].carried);
    }
  }
}

TEST_CASE("fixed-greedy makes what its description written plainly makes") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options;
    options.context_window = 8 + below(random, 60);
    options.sequences_per_step = 1 + below(random, 7);
    options.of<FixedLengthOptions>().pack_window = 1 + below(random, 4);
    const std::vector<GlobalBatch> batches = document_batches(random_batches(random, options.context_window));
    const Plan plan = plan_of("fixed-greedy", batches, options);
    const auto expected = naive::fixed_greedy(
        slices_of(batches), static_cast<std::size_t>(options.sequences_per_step), options.context_window,
        static_cast<std::size_t>(options.of<FixedLengthOptions>().pack_window));
    REQUIRE(plan.steps.size() == expected.size());
    for (std::size_t s = 0; s < expected.size(); ++s) REQUIRE(bins_of(plan.steps[s]) == expected[s].bins);
  }
}

TEST_CASE("no heuristic beats the exact optimum of a tiny case, and lpt keeps its guarantee") {
  double worst_lpt = 1;
  double worst_kk = 1;
  double worst_wlb = 1;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options;
    options.context_window = 20;
    options.sequences_per_step = 2 + below(random, 2);
    const auto bins = static_cast<std::size_t>(options.sequences_per_step);
    const std::vector<std::int64_t> lengths = random_lengths(random, 2 + below(random, 6), 20);
    const std::vector<GlobalBatch> batches = document_batches({lengths});
    const double free = optimum(lengths, bins, 1000);
    const double lpt = largest(plan_of("lpt", batches, options));
    const double kk = largest(plan_of("karmarkar-karp", batches, options));
    CHECK(lpt >= free);
    CHECK(kk >= free);
    CHECK(lpt <= free * (4.0 / 3.0 - 1.0 / (3.0 * static_cast<double>(bins))) + 1e-9);
    worst_lpt = std::max(worst_lpt, lpt / free);
    worst_kk = std::max(worst_kk, kk / free);
    const Plan greedy = plan_of("fixed-greedy", batches, options);
    if (greedy.steps.size() == 1) CHECK(largest(greedy) >= optimum(lengths, bins, 20));
    const Plan wlb = plan_of("wlb", batches, options);
    if (wlb.steps.size() == 1) {
      CHECK(largest(wlb) >= optimum(lengths, bins, 40));
      worst_wlb = std::max(worst_wlb, largest(wlb) / optimum(lengths, bins, 40));
    }
  }
  MESSAGE("worst ratio to the optimum: lpt " << worst_lpt << ", karmarkar-karp " << worst_kk << ", wlb "
                                             << worst_wlb);
}

TEST_CASE("heaviest first is a stable sort, whatever the weights") {
  SplitMix64 random(7);
  for (const std::size_t count : {0, 1, 2, 511, 512, 5000}) {
    for (const double unit : {0.0, -0.0, 1.0, -3.5, 1e-300, 0x1p-1074, 1e300}) {
      CAPTURE(count);
      CAPTURE(unit);
      std::vector<double> weights(count);
      for (double& weight : weights) {
        const double times = static_cast<double>(below(random, 1000) - 100);
        weight = below(random, 2) == 0 ? unit * times : 1 + times * 0x1p-52;  // which differ in the last bits
      }
      const auto falling = [&](std::uint32_t i) { return -weights[i]; };
      CHECK(heaviest_first(weights) == positions_by<std::uint32_t>(count, falling));
    }
  }
}
