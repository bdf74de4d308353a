// Writing a trace of a million slices on 32,768 tracks, with arguments on every eighth.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <vector>

#include "sim/timeline/perfetto.h"

namespace equipoise {
namespace {

void BM_MillionSlices(benchmark::State& state) {
  constexpr int kTracks = 32768;
  const int slices = static_cast<int>(state.range(0));
  const std::string path = (std::filesystem::temp_directory_path() / "equipoise_bench.pftrace").string();
  for (auto _ : state) {
    PerfettoWriter trace(path);
    std::vector<TrackId> tracks;
    for (int t = 0; t < kTracks; ++t) tracks.push_back(trace.add_track("rank " + std::to_string(t)));
    const NameId name = trace.slice_name("attention");
    const std::vector<TraceArgument> arguments = {{trace.argument_name("tokens"), std::int64_t{8192}},
                                                  {trace.argument_name("flops"), 1e12}};
    for (int i = 0; i < slices; ++i) {
      const std::int64_t start = i / kTracks * 1000000000LL;
      const TrackId track = tracks[static_cast<std::size_t>(i % kTracks)];
      if (i % 8 == 0)
        trace.begin(track, start, name, arguments);
      else
        trace.begin(track, start, name);
      trace.end(track, start + 900000000);
    }
    trace.close();
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path);
  std::filesystem::remove(path);
  state.SetItemsProcessed(state.iterations() * slices);
  state.counters["MB"] = static_cast<double>(bytes) / 1e6;
}
BENCHMARK(BM_MillionSlices)->Arg(1000000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace equipoise
