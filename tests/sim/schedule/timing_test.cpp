// Schedules on the engine: pipelines small enough to time by hand.
#include "policies/base/error.h"
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("Every op starts when its stage is free and its input has arrived") {
  // Two stages, micro-batches of 1 and 2, backward 2x.
  // Stage 0: F1 0-1, F2 1-3, B1 5-7 (stage 1 ends B1 at 4+... below), B2 after.
  // Stage 1: F1 1-2, B1 2-4, F2 4-6, B2 6-10.  Stage 0: F1 0-1, F2 1-3, B1 4-6, B2 10-14.
  const TimedSchedule timed = run("1f1b", standalone({1, 2}), {.stages = 2});
  const auto spans = [&](std::size_t s) {
    std::vector<std::pair<double, double>> list;
    for (const TimedOp& op : timed.stages[s]) list.emplace_back(op.start, op.end);
    return list;
  };
  CHECK(spans(0) == std::vector<std::pair<double, double>>{{0, 1}, {1, 3}, {4, 6}, {10, 14}});
  CHECK(spans(1) == std::vector<std::pair<double, double>>{{1, 2}, {2, 4}, {4, 6}, {6, 10}});
  CHECK(timed.makespan == 14);
  CHECK(timed.busy == std::vector<double>{9, 9});
  CHECK(bubble_ratio(timed) == doctest::Approx(1 - 18.0 / 28));
}

TEST_CASE("A blocking send keeps the sender busy until the transfer has arrived") {
  // Two stages, two micro-batches of 1, hops of 5. Free sends: stage 0 F1 0-1, F2 1-2. Blocking: F1 0-1, its
  // transfer until 6, F2 6-7. Stage 1's backward sends too; its forward, being last, does not.
  const LaneCase lane = standalone({1, 1});
  const TimedSchedule free = run("1f1b", lane, {.stages = 2, .hops = {5, false}});
  CHECK(free.stages[0][1].start == 1);
  // F1 arrives at 6: F 6-7, B 7-9, F 9-10, B 10-12; stage 0: B1 14-16, B2 17-19.
  CHECK(free.makespan == 19);
  const TimedSchedule blocking = run("1f1b", lane, {.stages = 2, .hops = {5, true}});
  CHECK(blocking.stages[0][1].start == 6);
  // Stage 1: F1 6-7, B1 7-9, busy until 14, F2 14-15, B2 15-17; stage 0: B1 14-16, B2 22-24.
  CHECK(blocking.makespan == 24);
}

TEST_CASE("R pays a forward and is not useful time") {
  const LaneCase lane{{3, 3}, {2}};
  const TimedSchedule timed = run("state-aware-1f1b", lane, {.stages = 1, .backward_ratio = 3});
  // D1 F2 B2 R1 B1 = 3 + 3 + 9 + 3 + 9.
  CHECK(timed.makespan == 27);
  CHECK(timed.recompute == std::vector<double>{3});
  CHECK(bubble_ratio(timed) == doctest::Approx(3.0 / 27));
}

TEST_CASE("An empty lane takes no time and has no bubble") {
  for (const SchedulePolicy& policy : schedule_policies()) {
    const TimedSchedule timed = run(policy.name, standalone({}), {});
    CHECK(timed.makespan == 0);
    CHECK(bubble_ratio(timed) == 0);
  }
}

TEST_CASE("A schedule that cannot go on says who waits for what") {
  Schedule schedule =
      schedule_policy("1f1b").make({.stages = 2, .group_sizes = std::vector<std::int32_t>{1, 1}});
  // Stage 0 needs B1 before it has sent F2, stage 1 needs F2 before B1: each waits for the other.
  schedule.ops[0] = {{OpKind::F, 0, 0}, {OpKind::B, 0, 0}, {OpKind::F, 1, 0}, {OpKind::B, 1, 0}};
  schedule.ops[1] = {{OpKind::F, 0, 0}, {OpKind::F, 1, 0}, {OpKind::B, 0, 0}, {OpKind::B, 1, 0}};
  try {
    time_schedule(schedule, op_durations(schedule, std::vector<double>{1, 1}, 2));
    FAIL("the schedule ran");
  } catch (const EngineError& stall) {
    const std::string text = stall.what();
    CHECK(text.find("stage 0 waits at B of micro-batch 0 for stage 1's B of micro-batch 0") != text.npos);
    CHECK(text.find("stage 1 waits at F of micro-batch 1 for stage 0's F of micro-batch 1") != text.npos);
  }
}
