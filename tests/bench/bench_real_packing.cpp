// Every packer on real lengths (real_lengths.h), for pack lengths from 4K to 128K: whole plans on one thread,
// as a caller gets them. A trace counts as long as it is; documents above what a policy can place are cut
// outside the timing, as --oversize split does. Policies of windows get global batches of 64 windows of the
// pack length, those of documents 1,024 documents. Not among them are the integer programs, whose time is a
// limit.
#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

#include "policies/cp_degree/cp_grid.h"
#include "policies/loader.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/hbp.h"
#include "policies/packing/skrull.h"
#include "policies/packing/wlb.h"
#include "policies/parameter.h"
#include "policies/policy.h"
#include "policies/steps.h"
#include "tests/bench/real_lengths.h"

namespace equipoise {
namespace {

constexpr int kLanes = 8, kContext = 8;

const std::vector<std::int64_t>& lengths_of(const std::string& path) {
  static std::map<std::string, std::vector<std::int64_t>> read;
  const auto [found, is_new] = read.try_emplace(path);
  if (is_new) found->second = read_trace(path).lengths;
  return found->second;
}

// One length for all: of packs, windows and micro-batches, the first of hbp's groups, what CP ranks hold
// together.
PackOptions options_of(const Policy& policy, std::int64_t length) {
  PackOptions options;
  options.context_window = length;
  options.sequences_per_step = 64;
  options.lanes = kLanes;
  options.context = kContext;
  options.gpus = kLanes * kContext;
  if (policy.batches == BatchKind::documents || policy.sees_whole_set) options.documents_per_step = 1024;
  options.of<PackLengthOptions>().pack_length = length;
  options.of<WlbOptions>().queues = 2;
  options.of<ChunkflowOptions>().chunk_size = length;
  options.groups = {{length, 1, 0}, {kContext * length, kContext, 0}};
  options.bucket_size = length / kContext;
  options.of<CpGridOptions>().tokens_per_rank = length / kContext;
  return options;
}

void BM_Pack(benchmark::State& state, const Policy& policy, const std::string& path) {
  const PackOptions options = options_of(policy, state.range(0) * 1024);
  Batches made = load_documents(lengths_of(path), options, {}).batches;
  const std::int64_t limit = policy.hard_limit != nullptr ? policy.hard_limit(options) : 0;
  std::vector<Slice> dropped;
  if (limit > 0)
    if (auto cut = without_oversize(made, limit, Oversize::split, policy.name, dropped)) made = *cut;
  const std::vector<GlobalBatch> batches(made.begin(), made.end());  // so that making them is not measured
  std::int64_t documents = 0;
  for (const GlobalBatch& batch : batches) documents += static_cast<std::int64_t>(batch.slices.size());
  const QuadraticWorkload quadratic;
  const PackingProblem problem{batches, options, quadratic};
  for (auto _ : state) benchmark::DoNotOptimize(policy.plan(problem).steps.size());
  state.SetItemsProcessed(documents * static_cast<std::int64_t>(state.iterations()));
  state.counters["documents"] = static_cast<double>(documents);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string& path : real_length_files())
    for (const Policy& policy : packing_policies()) {
      if (policy.name.ends_with("-solver")) continue;
      const std::string name = "Pack/" + trace_name(path) + "/" + std::string(policy.name);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&policy, path](benchmark::State& state) { BM_Pack(state, policy, path); })
          ->ArgName("length_K")
          ->RangeMultiplier(2)
          ->Range(4, 128)
          ->Unit(benchmark::kMillisecond);
    }
  return true;
}();

}  // namespace
}  // namespace equipoise
