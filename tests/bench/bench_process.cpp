// `pack` and `study` as whole processes: elapsed time, user and system CPU time, peak resident memory of the
// child. The program is the one of this build, or EQUIPOISE's. before_after.py compares programs.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace equipoise {
namespace {

const std::string kTraces = EQUIPOISE_SOURCE_DIR "/traces/";

struct Command {
  const char* name;
  std::vector<std::string> arguments;
};

std::vector<Command> commands() {
  const auto study = [](const char* name, std::vector<std::string> options) {
    std::vector<std::string> all = {"study", kTraces + "studies/" + name + ".json", "--quiet"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  };
  const auto pack = [](const char* policy, std::vector<std::string> options) {
    std::vector<std::string> all = {
        "pack", kTraces + "recorded/mixed.txt.zst", "--policy", policy, "--oversize", "split"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  };
  return {{"start", {"--version"}},
          {"pack/isf_4K", pack("isf", {"--pack-length", "4K"})},
          {"pack/ffd_4K", pack("ffd", {"--pack-length", "4K"})},
          {"pack/ffd_4K_json", pack("ffd", {"--pack-length", "4K", "--format", "json"})},
          {"pack/hbp", pack("hbp", {"--groups", "16K:1,128K:8", "--lanes", "4", "--context", "8"})},
          {"pack/wlb", pack("wlb", {"--queues", "2", "--sequences-per-step", "64"})},
          {"study/7b-128k", study("7b-128k", {})},
          {"study/7b-128k_op", study("7b-128k", {"--fidelity", "op"})},
          {"study/70b-128k", study("70b-128k", {})},
          {"study/405b-8k-gpus", study("405b-8k-gpus", {})},
          {"study/405b-8k-gpus_op", study("405b-8k-gpus", {"--fidelity", "op"})},
          {"study/405b-8k-gpus_contended_step",
           study("405b-8k-gpus",
                 {"--fidelity", "op", "--contention", "--ignore-memory", "--set", "batch.steps=1", "--set",
                  "cluster.network.topology=fat-tree", "--set", "cluster.network.oversubscription=4"})},
          {"study/405b-131k-gpus", study("405b-131k-gpus", {"--set", "batch.steps=4"})}};
}

struct Cost {
  double elapsed = 0, cpu = 0, peak_MB = 0;
};

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Nothing where the program does not end well.
std::optional<Cost> run(const char* program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const auto begin = std::chrono::steady_clock::now();
  pid_t child = -1;
  const bool started = posix_spawn(&child, program, &files, nullptr, argv.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  rusage usage{};
  if (!started || wait4(child, &status, 0, &usage) != child || status != 0) return std::nullopt;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return Cost{elapsed.count(), seconds(usage.ru_utime) + seconds(usage.ru_stime),
              static_cast<double>(usage.ru_maxrss) / 1024};
}

void BM_Process(benchmark::State& state, const Command& command) {
  const char* const other = std::getenv("EQUIPOISE");
  const char* const program = other != nullptr ? other : EQUIPOISE_PROGRAM;
  double cpu = 0, peak_MB = 0;
  for (auto _ : state) {
    const std::optional<Cost> cost = run(program, command.arguments);
    if (!cost) {
      state.SkipWithError("the program does not end well");
      break;
    }
    state.SetIterationTime(cost->elapsed);
    cpu += cost->cpu;
    peak_MB = std::max(peak_MB, cost->peak_MB);
  }
  state.counters["cpu_s"] = benchmark::Counter(cpu, benchmark::Counter::kAvgIterations);
  state.counters["peak_MB"] = peak_MB;
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Command& command : commands())
    benchmark::RegisterBenchmark(("Process/" + std::string(command.name)).c_str(),
                                 [command](benchmark::State& s) { BM_Process(s, command); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace equipoise
