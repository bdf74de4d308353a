// How fast a profile predicts: the simulator and the packers ask millions of times.
#include <benchmark/benchmark.h>

#include <vector>

#include "policies/base/random.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

std::vector<QueryKeys> pieces_of(std::int64_t count) {
  SplitMix64 random(17);
  std::vector<QueryKeys> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto queries = static_cast<std::int64_t>(1 + random.next() % 4096);
    pieces.push_back({queries, queries + static_cast<std::int64_t>(random.next() % 8192)});
  }
  return pieces;
}

void BM_AttentionForward(benchmark::State& state) {
  const Profile profile = Profile::load("h100-sxm");
  const AttentionModel model(profile, {128, 8, 2});
  const std::vector<QueryKeys> pieces = pieces_of(state.range(0));
  RangeUse use;
  for (auto _ : state) benchmark::DoNotOptimize(model.forward_seconds(pieces, use));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_AttentionForward)->RangeMultiplier(8)->Range(1, 4096);

void BM_Gemm(benchmark::State& state) {
  const Profile profile = Profile::load("h100-sxm");
  const GemmModel model(profile, Precision::bf16);
  RangeUse use;
  std::int64_t m = 1000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model.seconds(m, 4096, 11008, use));
    m = 1 + (m * 5 + 7) % 65536;
  }
}
BENCHMARK(BM_Gemm);

void BM_Collective(benchmark::State& state) {
  const Profile profile = Profile::load("h100-sxm");
  const CollectiveModel model(profile, {});
  const GroupShape group{64, static_cast<int>(state.range(0))};
  RangeUse use;
  double bytes = 1e6;
  for (auto _ : state) {
    benchmark::DoNotOptimize(model.seconds(Collective::all_reduce, bytes, group, use));
    bytes = bytes < 1e9 ? bytes * 1.01 : 1e6;
  }
}
BENCHMARK(BM_Collective)->Arg(64)->Arg(8);

}  // namespace
}  // namespace equipoise
