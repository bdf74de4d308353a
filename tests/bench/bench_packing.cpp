// Speed of the packing policies on one thread: whole plans, as a caller gets them, with the nested result
// built. Lengths are drawn from a fixed seed, so that any number of them is alike: lognormal around 350
// tokens with a heavy tail (mean about 1,000, the longest above a million), documents above the pack length
// cut as --oversize split does, outside the timing. Real lengths: bench_real_packing.cpp.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "policies/base/random.h"
#include "policies/loader.h"
#include "policies/make_plan.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/hbp.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/wlb.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "policies/validator.h"

namespace equipoise {
namespace {

double uniform(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
}

std::vector<std::int64_t> lengths_of(std::size_t count) {
  SplitMix64 random(17);
  std::vector<std::int64_t> lengths(count);
  for (std::int64_t& length : lengths) {
    const double radius = std::sqrt(-2 * std::log(uniform(random)));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform(random));
    const double body = 350 * std::exp(1.35 * normal);
    // One in two thousand from a Pareto tail.
    const double tail = uniform(random) < 0.0005 ? 20000 / std::pow(uniform(random), 0.7) : 0;
    length = static_cast<std::int64_t>(std::min(2e6, std::max({1.0, body, tail})));
  }
  return lengths;
}

// The set as document batches of 1,024, nothing longer than `longest`.
std::vector<GlobalBatch> batches_of(std::size_t count, std::int64_t longest) {
  PackOptions shape;
  shape.documents_per_step = 1024;
  Batches batches = load_documents(lengths_of(count), shape, {}).batches;
  std::vector<Slice> dropped;
  if (auto cut = without_oversize(batches, longest, Oversize::split, "", dropped)) batches = *cut;
  return {batches.begin(), batches.end()};  // so that making them is not measured
}

void time_policy(benchmark::State& state, const char* name, const PackOptions& options,
                 const std::vector<GlobalBatch>& batches) {
  const QuadraticWorkload quadratic;
  const Policy& policy = packing_policy(name);
  const PackingProblem problem{batches, options, quadratic};
  std::int64_t documents = 0;
  for (const GlobalBatch& batch : batches) documents += static_cast<std::int64_t>(batch.slices.size());
  std::size_t steps = 0;
  for (auto _ : state) {
    steps = policy.plan(problem).steps.size();
    benchmark::DoNotOptimize(steps);
  }
  state.SetItemsProcessed(documents * static_cast<std::int64_t>(state.iterations()));
  state.counters["steps"] = static_cast<double>(steps);
  state.SetComplexityN(state.range(0));
}

// Packers of one length: documents, pack length in K.
void BM_Pack(benchmark::State& state, const char* name) {
  PackOptions options;
  options.of<PackLengthOptions>().pack_length = state.range(1) * 1024;
  options.lanes = 8;
  const auto batches =
      batches_of(static_cast<std::size_t>(state.range(0)), options.of<PackLengthOptions>().pack_length);
  time_policy(state, name, options, batches);
}

void caps(benchmark::internal::Benchmark* b) {
  for (const std::int64_t cap : {4, 8, 16, 32, 64, 128}) b->Args({1000000, cap});
  b->ArgNames({"documents", "cap_K"})->Unit(benchmark::kMillisecond);
}

void growth(benchmark::internal::Benchmark* b) {
  for (const std::int64_t n : {15625, 62500, 250000, 1000000}) b->Args({n, 16});
  b->ArgNames({"documents", "cap_K"})->Unit(benchmark::kMillisecond)->Complexity(benchmark::oNLogN);
}

#define EQUIPOISE_PACKER(id, name)                   \
  BENCHMARK_CAPTURE(BM_Pack, id, name)->Apply(caps); \
  BENCHMARK_CAPTURE(BM_Pack, id##_growth, name)->Apply(growth)

EQUIPOISE_PACKER(isf, "isf");
EQUIPOISE_PACKER(ffd, "ffd");
EQUIPOISE_PACKER(bfd, "bfd");
EQUIPOISE_PACKER(multipack, "multipack");
EQUIPOISE_PACKER(ffs, "ffs");
EQUIPOISE_PACKER(bfs, "bfs");
EQUIPOISE_PACKER(spfhp, "spfhp");
EQUIPOISE_PACKER(random, "random");
EQUIPOISE_PACKER(longalign_packing, "longalign-packing");
EQUIPOISE_PACKER(dp_balanced, "dp-balanced");

// HBP on the paper's groups, 16K at degree 1 and 128K at degree 8.
void BM_Hbp(benchmark::State& state) {
  PackOptions options;
  options.groups = {{16 * 1024, 1, 0}, {128 * 1024, 8, 0}};
  options.gpus = 32;
  const auto batches = batches_of(static_cast<std::size_t>(state.range(0)), 128 * 1024);
  time_policy(state, "hbp", options, batches);
}
BENCHMARK(BM_Hbp)
    ->RangeMultiplier(4)
    ->Range(15625, 1000000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oNLogN);

// Balancers, one batch of `documents` into `bins`.
void BM_Balance(benchmark::State& state, const char* name) {
  PackOptions options;
  options.context_window = 128 * 1024;
  options.documents_per_step = state.range(0);
  options.micro_batches = options.sequences_per_step = state.range(1);
  options.of<WlbOptions>().queues = 2;
  options.max_tokens = 1 << 30;
  options.of<ChunkflowOptions>().chunk_size = 8 * 1024;
  const auto lengths = lengths_of(static_cast<std::size_t>(state.range(0)));
  Batches made = load_documents(lengths, options, {}).batches;
  std::vector<Slice> dropped;
  if (auto cut = without_oversize(made, options.context_window, Oversize::truncate, "", dropped)) made = *cut;
  const std::vector<GlobalBatch> batches(made.begin(), made.end());
  // Room for all in one step, as where a global batch is N windows.
  std::int64_t tokens = 0;
  for (const Slice& slice : batches[0].slices) tokens += slice.tokens();
  options.context_window = std::max(options.context_window, tokens * 21 / 20 / state.range(1));
  time_policy(state, name, options, batches);
}

void balance(benchmark::internal::Benchmark* b) {
  for (const std::int64_t n : {2048, 8192, 32768, 131072}) b->Args({n, 64});
  b->ArgNames({"documents", "bins"})->Unit(benchmark::kMicrosecond)->Complexity(benchmark::oNLogN);
}
BENCHMARK_CAPTURE(BM_Balance, wlb, "wlb")->Apply(balance);
BENCHMARK_CAPTURE(BM_Balance, fixed_greedy, "fixed-greedy")->Apply(balance);
BENCHMARK_CAPTURE(BM_Balance, lpt, "lpt")->Apply(balance);
BENCHMARK_CAPTURE(BM_Balance, karmarkar_karp, "karmarkar-karp")->Apply(balance);
// Batches of the size that ChunkFlow trains on (256 documents) and well above.
BENCHMARK_CAPTURE(BM_Balance, chunkflow_small, "chunkflow")
    ->ArgNames({"documents", "bins"})
    ->Args({128, 64})
    ->Args({512, 64})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_Balance, chunkflow, "chunkflow")->Apply(balance);

// The bare partition, 64 parts.
void BM_KarmarkarKarp(benchmark::State& state) {
  std::vector<double> weights;
  for (const std::int64_t x : lengths_of(static_cast<std::size_t>(state.range(0)))) {
    weights.push_back(static_cast<double>(x));
  }
  for (auto _ : state) benchmark::DoNotOptimize(karmarkar_karp(weights, 64, state.range(1) != 0));
  state.SetItemsProcessed(state.range(0) * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(BM_KarmarkarKarp)
    ->ArgNames({"documents", "equal_size"})
    ->Args({2048, 0})
    ->Args({100000, 0})
    ->Args({100000, 1})
    ->Unit(benchmark::kMillisecond);

// Whole steps that only deal documents out.
void BM_Deal(benchmark::State& state, const char* name) {
  PackOptions options;
  options.documents_per_step = 1024;
  time_policy(state, name, options, batches_of(static_cast<std::size_t>(state.range(0)), 1 << 30));
}
BENCHMARK_CAPTURE(BM_Deal, plain, "plain")->Arg(1000000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Deal, padded, "padded")->Arg(1000000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Deal, sorted, "sorted")->Arg(1000000)->Unit(benchmark::kMillisecond);

void BM_Loader(benchmark::State& state) {
  const std::vector<std::int64_t> lengths = lengths_of(1000000);
  const PackOptions options;
  for (auto _ : state) benchmark::DoNotOptimize(load_documents(lengths, options, {}).batches.size());
  state.SetItemsProcessed(1000000 * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(BM_Loader)->Unit(benchmark::kMillisecond);

void BM_Validate(benchmark::State& state) {
  PackOptions options;
  options.of<PackLengthOptions>().pack_length = 16 * 1024;
  const auto batches =
      batches_of(static_cast<std::size_t>(state.range(0)), options.of<PackLengthOptions>().pack_length);
  const QuadraticWorkload quadratic;
  const Plan plan = make_plan(packing_policy("ffs"), {batches, options, quadratic});
  for (auto _ : state) benchmark::DoNotOptimize(plan_violation(batches, plan, {}).has_value());
  state.SetComplexityN(state.range(0));
}
BENCHMARK(BM_Validate)
    ->RangeMultiplier(4)
    ->Range(15625, 1000000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oNLogN);

}  // namespace
}  // namespace equipoise
