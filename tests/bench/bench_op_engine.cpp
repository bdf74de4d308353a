// Speed of the op fidelity at the scale of an 8,192-GPU job: Llama 3.1 405B (126 layers), TP 8, CP 16, PP 16,
// DP 4, 16 micro-batches of 128K tokens a lane; and of 131,072 GPUs with DP 64. Measured with (step) and
// without (engine) the expansion of the plan into ops. Documents: lognormal lengths, cut at the window.
#include <benchmark/benchmark.h>

#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/step/expansion.h"
#include "sim/step/op_run.h"
#include "sim/step/op_step_simulator.h"
#include "tests/bench/memory.h"
#include "tests/bench/packed_step.h"

namespace equipoise {
namespace {

constexpr int kTensor = 8;
constexpr int kContext = 16;
constexpr int kPipeline = 16;
constexpr int kMicroBatches = 16;
constexpr std::int64_t kWindow = 131072;

struct Job {
  ModelShape model = builtin_model("llama3.1-405b");
  Layout layout;
  Profile profile = Profile::load("h100-sxm");
  RankGrid grid;
  LayerCosts costs;
  ShardRule shard;
  StepOptions options;
  Step step;

  static Layout layout_of(int data) {
    Layout l;
    l.tensor = kTensor;
    l.context = kContext;
    l.pipeline = kPipeline;
    l.data = data;
    return l;
  }
  explicit Job(int data)
      : layout(layout_of(data)),
        grid(layout.order, {kTensor, kContext, 1, data, kPipeline}, 8),
        costs(model, layout, profile, grid, {}, {}),
        step(packed_step({data, kContext, kMicroBatches, kWindow})) {
    shard.fixed = &sharding_policy("per-document");
    options.schedule = &schedule_policy("1f1b");
  }
};

int data_of(const benchmark::State& state) {
  return static_cast<int>(state.range(0)) / (kTensor * kContext * kPipeline);
}

void report(benchmark::State& state, std::int64_t tasks) {
  state.SetItemsProcessed(tasks * static_cast<std::int64_t>(state.iterations()));
  state.counters["tasks"] = static_cast<double>(tasks);
}

// Plan to result: sharding, costs, expansion, every op of every rank.
void BM_OpStep(benchmark::State& state) {
  const Job job(data_of(state));
  const bool fold = state.range(1) != 0;
  OpOptions options;
  options.threads = static_cast<int>(state.range(2));
  const auto work = [&] {
    return run(StepExpander(job.costs, job.shard, job.options, fold).expand(job.step), options);
  };
  state.counters["peak_MB"] = peak_bytes([&] { benchmark::DoNotOptimize(work().makespan); }) / 1e6;
  std::int64_t tasks = 0;
  for (auto _ : state) {
    const OpResult result = work();
    tasks = result.tasks;
    state.counters["step_seconds"] = static_cast<double>(result.makespan) * 1e-12;
  }
  report(state, tasks);
}

void BM_OpEngine(benchmark::State& state, double jitter) {
  const Job job(data_of(state));
  OpOptions options;
  options.threads = static_cast<int>(state.range(2));
  options.jitter.sigma = jitter;
  const OpProgram program =
      StepExpander(job.costs, job.shard, job.options, state.range(1) != 0).expand(job.step);
  std::int64_t tasks = 0;
  for (auto _ : state) tasks = run(program, options).tasks;
  report(state, tasks);
}

// The same step at stage fidelity.
void BM_StageStep(benchmark::State& state) {
  const Job job(data_of(state));
  StepSimulator simulator(job.costs, job.shard, job.options, nullptr);
  for (auto _ : state)
    state.counters["step_seconds"] = static_cast<double>(simulator.run(job.step).times.makespan) * 1e-12;
}

void scales(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    b->Args({8192, 1, threads});    // TP folded: must 2 s, aim 0.3 s
    b->Args({8192, 0, threads});    // every GPU its own tasks: must 30 s and 8 GiB, aim 3 s and 2 GiB
    b->Args({131072, 1, threads});  // must 60 s, aim 5 s
  }
  b->ArgNames({"gpus", "fold_tp", "threads"})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK(BM_OpStep)->Apply(scales);
BENCHMARK_CAPTURE(BM_OpEngine, exact, 0.0)->Apply(scales);
BENCHMARK_CAPTURE(BM_OpEngine, jitter, 0.02)
    ->Args({8192, 0, 1})
    ->ArgNames({"gpus", "fold_tp", "threads"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_StageStep)->Arg(8192)->ArgName("gpus")->Unit(benchmark::kMillisecond);  // must 10 ms, aim 1 ms

}  // namespace
}  // namespace equipoise
