// The clock of the packing search times a lane's pipeline as the engine does: policies/ knows no engine, so
// it has its own.
#include "policies/base/random.h"
#include "policies/packing/equipoise.h"
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE(
    "The clock of the packing search agrees with the engine on 600 random lanes of 1F1B and its interleaved "
    "form") {
  SplitMix64 random(31);
  const auto pick = [&](std::uint64_t least, std::uint64_t most) {
    return static_cast<int>(least + random.next() % (most - least + 1));
  };
  for (int round = 0; round < 600; ++round) {
    CAPTURE(round);
    const int stages = pick(1, 6);
    const int chunks = stages > 1 ? pick(1, 3) : 1;
    const int count = chunks > 1 ? stages * pick(1, 4) : pick(1, 14);
    std::vector<PassTimes> times(static_cast<std::size_t>(count));
    for (PassTimes& t : times) t = {1.0 * pick(1, 50), 1.0 * pick(1, 90)};
    const std::vector<std::int32_t> groups(times.size(), 1);
    const Schedule schedule = schedule_policy(chunks > 1 ? "interleaved-1f1b" : "1f1b")
                                  .make({.stages = stages, .virtual_stages = chunks, .group_sizes = groups});
    OpDurations durations(schedule.ops.size());
    for (std::size_t s = 0; s < durations.size(); ++s)
      for (const ScheduleOp& op : schedule.ops[s]) {
        const PassTimes& t = times[static_cast<std::size_t>(op.micro_batch)];
        durations[s].push_back(op.kind == OpKind::F ? t.forward : t.backward);
      }
    // A micro-batch's times are those of all stages and chunks together; here each op takes the whole of it.
    const double of_op = stages * chunks;
    CHECK(of_op * PipelineClock(stages, chunks, times.size()).makespan(times) ==
          doctest::Approx(time_schedule(schedule, durations).makespan).epsilon(1e-12));
  }
}
