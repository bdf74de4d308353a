// Speed of the sharding rules on what the simulator gives them: one step of 64 micro-batches of 128K tokens
// in about 30 documents each (lognormal lengths, fixed seed). Argument: CP ranks. Items are segments.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/base/random.h"
#include "policies/sharding/sharding.h"
#include "policies/workload.h"

namespace equipoise {
namespace {

constexpr std::int64_t kWindow = 131072;

double uniform(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) / 9007199254740992.0;
}

std::vector<MicroBatch> step_of_windows(int count) {
  SplitMix64 random(17);
  std::vector<MicroBatch> step(static_cast<std::size_t>(count));
  for (MicroBatch& batch : step) {
    for (std::int64_t left = kWindow, id = 0; left > 0; ++id) {
      // Box-Muller; median 1800, mean about 4400 tokens.
      const double normal =
          std::sqrt(-2 * std::log(uniform(random))) * std::cos(6.283185307179586 * uniform(random));
      const auto length = std::clamp<std::int64_t>(std::llround(1800 * std::exp(1.34 * normal)), 1, left);
      batch.slices.push_back({id, 0, length});
      left -= length;
    }
  }
  return step;
}

void shard_step(benchmark::State& state, const char* rule) {
  const std::vector<MicroBatch> step = step_of_windows(64);
  const QuadraticWorkload workload;
  const TileAttentionCost cost;
  ShardOptions options;
  options.pad = Pad::tail;
  options.workload = &workload;
  options.bucket_size = 2 * kWindow / state.range(0);
  const ShardFn shard = sharding_policy(rule).shard;
  const int ranks = static_cast<int>(state.range(0));
  Sharding out;
  std::size_t segments = 0;
  for (auto _ : state) {
    for (const MicroBatch& batch : step) {
      shard(batch, ranks, options, cost, out);
      segments += out.segments.size();
      benchmark::DoNotOptimize(out.segments.data());
    }
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(segments));
}

BENCHMARK_CAPTURE(shard_step, per_sequence, "per-sequence")->RangeMultiplier(2)->Range(2, 16);
BENCHMARK_CAPTURE(shard_step, per_document, "per-document")->RangeMultiplier(2)->Range(2, 16);
BENCHMARK_CAPTURE(shard_step, adaptive, "adaptive")->RangeMultiplier(2)->Range(2, 16);
BENCHMARK_CAPTURE(shard_step, contiguous, "contiguous")->Arg(16);
BENCHMARK_CAPTURE(shard_step, striped, "striped")->Arg(16);
BENCHMARK_CAPTURE(shard_step, dacp, "dacp")->Arg(16);
BENCHMARK_CAPTURE(shard_step, heap_dispatch, "heap-dispatch")->Arg(16);
BENCHMARK_CAPTURE(shard_step, snake, "snake")->Arg(16);

}  // namespace
}  // namespace equipoise
