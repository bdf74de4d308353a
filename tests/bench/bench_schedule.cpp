// How fast schedules are made: an engine makes one for every lane of every step. Argument: micro-batches on
// 16 stages, in groups of one except for every eighth, which has eight chunks where the schedule takes
// groups.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "sim/schedule/schedule.h"
#include "sim/step/schedule_problems.h"
#include "sim/step/schedule_timing.h"

namespace equipoise {
namespace {

constexpr int kStages = 16;

std::vector<std::int32_t> groups_for(std::string_view name, int micro_batches) {
  std::vector<std::int32_t> groups;
  const bool takes_groups = name == "state-aware-1f1b" || name == "seq1f1b";
  for (int left = micro_batches; left > 0; left -= groups.back())
    groups.push_back(takes_groups && groups.size() % 8 == 7 && left >= 8 ? 8 : 1);
  return groups;
}

ScheduleInput input_for(std::string_view name, std::span<const std::int32_t> groups) {
  return {.stages = kStages,
          .virtual_stages = name == "interleaved-1f1b" ? 4 : 1,
          .group_sizes = groups,
          .keep = 2};
}

std::int64_t ops_of(const Schedule& schedule) {
  std::size_t count = 0;
  for (const auto& ops : schedule.ops) count += ops.size();
  return static_cast<std::int64_t>(count);
}

void make(benchmark::State& state, const SchedulePolicy& policy) {
  const std::vector<std::int32_t> groups = groups_for(policy.name, static_cast<int>(state.range(0)));
  const ScheduleInput input = input_for(policy.name, groups);
  Schedule schedule;
  for (auto _ : state) {
    policy.make_into(input, schedule);
    benchmark::DoNotOptimize(schedule.ops.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * ops_of(schedule));  // ops
  state.SetComplexityN(state.range(0));
}

void validate(benchmark::State& state, const SchedulePolicy& policy) {
  const std::vector<std::int32_t> groups = groups_for(policy.name, static_cast<int>(state.range(0)));
  const ScheduleInput input = input_for(policy.name, groups);
  const Schedule schedule = policy.make(input);
  for (auto _ : state) benchmark::DoNotOptimize(schedule_problems(input, schedule));
  state.SetItemsProcessed(state.iterations() * ops_of(schedule));
}

void time(benchmark::State& state, const SchedulePolicy& policy) {
  const std::vector<std::int32_t> groups = groups_for(policy.name, static_cast<int>(state.range(0)));
  const Schedule schedule = policy.make(input_for(policy.name, groups));
  const std::vector<double> forward(static_cast<std::size_t>(schedule.micro_batches), 4.0);
  const OpDurations durations = op_durations(schedule, forward, 2);
  for (auto _ : state) benchmark::DoNotOptimize(time_schedule(schedule, durations));
  state.SetItemsProcessed(state.iterations() * ops_of(schedule));
}

}  // namespace
}  // namespace equipoise

int main(int argc, char** argv) {
  using namespace equipoise;
  for (const SchedulePolicy& policy : schedule_policies()) {
    const std::string name(policy.name);
    benchmark::RegisterBenchmark(("make/" + name).c_str(),
                                 [&policy](benchmark::State& state) { make(state, policy); })
        ->RangeMultiplier(8)
        ->Range(32, 8192)
        ->Complexity(benchmark::oN);
    benchmark::RegisterBenchmark(("validate/" + name).c_str(), [&policy](benchmark::State& state) {
      validate(state, policy);
    })->Arg(1024);
    benchmark::RegisterBenchmark(("time/" + name).c_str(), [&policy](benchmark::State& state) {
      time(state, policy);
    })->Arg(1024);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
