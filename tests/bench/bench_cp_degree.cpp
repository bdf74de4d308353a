// Speed of the policies that choose a CP degree per document: 512 documents (heavy-tailed, fixed seed, up to
// 128K tokens) on a grid of GPUs (argument), 8K tokens a rank; and how far FlexSP's heuristic is above the
// bound.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "policies/base/random.h"
#include "policies/cp_degree/cp_grid.h"
#include "policies/cp_degree/flexsp.h"
#include "policies/make_plan.h"
#include "policies/policy.h"

namespace equipoise {
namespace {

std::vector<std::int64_t> documents(std::int64_t count) {
  SplitMix64 random(17);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = (static_cast<double>(random.next() >> 11) + 0.5) / 9007199254740992.0;
    lengths.push_back(std::min<std::int64_t>(131072, std::llround(600 * std::pow(u, -0.8))));  // Pareto
  }
  std::sort(lengths.rbegin(), lengths.rend());
  return lengths;
}

// Even shares, and a price on each token whose keys move.
class CommunicatingWorkload final : public Workload {
 public:
  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      out[i] = static_cast<double>(tokens[i]) * (static_cast<double>(tokens[i]) + 30000);
  }
  void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override {
    of(tokens, out);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      out[i] = out[i] / degree + (degree > 1 ? 2000 * static_cast<double>(tokens[i]) : 0);
  }
};

void flexsp(benchmark::State& state) {
  FlexspProblem problem;
  const int gpus = static_cast<int>(state.range(0));
  problem.grid = {gpus, gpus, 8192, static_cast<int>(state.range(1))};
  problem.tokens = documents(512);
  for (const std::int64_t t : problem.tokens) problem.least_degree.push_back(problem.grid.degree_needed(t));
  const CommunicatingWorkload workload;
  for (int degree = 1; degree <= gpus; degree *= 2) {
    problem.times.emplace_back(problem.tokens.size());
    workload.on_group(problem.tokens, degree, problem.times.back());
  }
  double slowest = 0;
  const std::vector<GroupLayout> layouts = group_layouts(problem.grid);
  for (auto _ : state) slowest = flexsp_heuristic(problem, layouts).slowest;
  LayoutBounds bounds(problem);
  double bound = slowest;
  for (const GroupLayout& layout : layouts) bound = std::min(bound, bounds.of(layout));
  state.counters["over_bound_percent"] = 100 * (slowest / bound - 1);
}
BENCHMARK(flexsp)->ArgsProduct({{16, 32, 64, 256}, {1, 4}})->Unit(benchmark::kMillisecond);

void plan(benchmark::State& state, const char* policy) {
  std::vector<GlobalBatch> batches(1);
  for (const std::int64_t length : documents(512))
    batches[0].slices.push_back({static_cast<std::int64_t>(batches[0].slices.size()), 0, length});
  PackOptions options;
  options.gpus = state.range(0);
  options.of<CpGridOptions>().tokens_per_rank = 8192;
  const CommunicatingWorkload workload;
  for (auto _ : state)
    benchmark::DoNotOptimize(make_plan(packing_policy(policy), {batches, options, workload}));
}
BENCHMARK_CAPTURE(plan, hybrid_cp, "hybrid-cp")->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, dynamic_cp, "dynamic-cp")->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, flexsp, "flexsp")->Arg(64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace equipoise
