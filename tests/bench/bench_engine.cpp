// Speed of the event engine. "PP-var" is a reference workload against which other simulators were measured:
// PP 8, DP N/8, 32 micro-batches, 1F1B; forward 20 ms x lognormal(0, 0.6) per (lane, micro-batch), equal on
// all stages, backward twice that, 64 MiB each way between stages at 50 GB/s plus 1 us; no folding; start and
// end of every task are kept.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "policies/base/random.h"
#include "sim/verify/longest_path.h"
#include "tests/bench/memory.h"

namespace equipoise {
namespace {

constexpr int kStages = 8;
constexpr int kMicroBatches = 32;
constexpr double kTransferSeconds = 67108864.0 / 50e9 + 1e-6;

double lognormal(SplitMix64& random, double sigma) {
  const auto uniform = [&] { return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53; };
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return std::exp(sigma * radius * std::cos(2 * std::numbers::pi * uniform()));
}

// Lane by lane, so that a lane's few hundred tasks lie together.
TaskGraph pp_var(int gpus, double sigma) {
  SplitMix64 random(1);
  const Picoseconds transfer = to_picoseconds(kTransferSeconds);
  const int lanes = gpus / kStages;
  TaskGraphBuilder builder;
  const auto lane_count = static_cast<std::size_t>(lanes);
  builder.reserve(lane_count * kMicroBatches * (4 * kStages - 2),
                  lane_count * kMicroBatches * (6 * kStages - 3));
  std::vector<Picoseconds> forward(kMicroBatches);
  std::vector<TaskId> f(kStages * kMicroBatches);
  std::vector<TaskId> b(kStages * kMicroBatches);
  for (int lane = 0; lane < lanes; ++lane) {
    for (Picoseconds& time : forward) time = to_picoseconds(0.020 * lognormal(random, sigma));
    for (int s = 0; s < kStages; ++s) {
      const StreamId stream = builder.add_stream(lane * kStages + s);
      const int warm_up = std::min(kStages - 1 - s, kMicroBatches);
      const auto issue_forward = [&](int m) {
        f[static_cast<std::size_t>(s * kMicroBatches + m)] =
            builder.add_task(stream, forward[static_cast<std::size_t>(m)]);
      };
      for (int m = 0; m < warm_up; ++m) issue_forward(m);
      for (int m = 0; m < kMicroBatches; ++m) {
        if (m + warm_up < kMicroBatches) issue_forward(m + warm_up);
        b[static_cast<std::size_t>(s * kMicroBatches + m)] =
            builder.add_task(stream, 2 * forward[static_cast<std::size_t>(m)]);
      }
    }
    for (int s = 0; s + 1 < kStages; ++s)
      for (int m = 0; m < kMicroBatches; ++m) {
        const auto here = static_cast<std::size_t>(s * kMicroBatches + m);
        builder.add_transfer(f[here], f[here + kMicroBatches], transfer);
        builder.add_transfer(b[here + kMicroBatches], b[here], transfer);
      }
  }
  return builder.build();
}

void report(benchmark::State& state, std::size_t tasks, double bytes) {
  state.SetItemsProcessed(static_cast<std::int64_t>(tasks) * static_cast<std::int64_t>(state.iterations()));
  state.counters["tasks"] = static_cast<double>(tasks);
  if (bytes >= 0) state.counters["peak_MB"] = bytes / 1e6;
}

// Engine alone: the graph is there, the run makes start and end of every task.
void BM_PpVar(benchmark::State& state, double sigma) {
  const int gpus = static_cast<int>(state.range(0));
  const double bytes = peak_bytes([&] { benchmark::DoNotOptimize(run(pp_var(gpus, sigma)).makespan); });
  const TaskGraph graph = pp_var(gpus, sigma);
  double makespan = 0;
  for (auto _ : state) makespan = static_cast<double>(run(graph).makespan) * 1e-12;
  state.counters["step_seconds"] = makespan;
  report(state, graph.tasks(), bytes);
}

// This also makes the graph.
void BM_PpVarWithBuild(benchmark::State& state) {
  const int gpus = static_cast<int>(state.range(0));
  std::size_t tasks = 0;
  for (auto _ : state) {
    const TaskGraph graph = pp_var(gpus, 0.6);
    tasks = graph.tasks();
    benchmark::DoNotOptimize(run(graph).makespan);
  }
  report(state, tasks, -1);
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const int gpus : {8, 64, 512, 2048, 8192, 131072}) b->Arg(gpus);
  b->ArgName("gpus")->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(BM_PpVar, unequal, 0.6)->Apply(sizes);
BENCHMARK_CAPTURE(BM_PpVar, equal, 0.0)->Apply(sizes);
BENCHMARK(BM_PpVarWithBuild)->Apply(sizes);

}  // namespace
}  // namespace equipoise
