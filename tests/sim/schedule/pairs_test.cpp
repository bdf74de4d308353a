// Forwards and backwards that are issued together.
#include <algorithm>
#include <numeric>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/step/schedule_timing.h"
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

ScheduleInput paired(const LaneCase& lane, int stages, int virtual_stages = 1) {
  return {.stages = stages, .virtual_stages = virtual_stages, .group_sizes = lane.groups, .pairs = true};
}

// "F1 F2&B1 B2"
std::string text(const std::vector<ScheduleOp>& ops) {
  std::string out;
  for (const ScheduleOp& op : ops)
    out += std::string(letter_of(op.kind)) + std::to_string(op.micro_batch + 1) + (op.with_next ? "&" : " ");
  if (!out.empty()) out.pop_back();
  return out;
}

TimedSchedule timed(std::string_view name, const LaneCase& lane, int stages, int virtual_stages = 1) {
  const ScheduleInput input = paired(lane, stages, virtual_stages);
  const Schedule schedule = schedule_policy(name).make(input);
  const std::vector<std::string> problems = schedule_problems(input, schedule);
  CAPTURE(problems.empty() ? std::string() : problems.front());
  CHECK(problems.empty());
  return time_schedule(schedule, op_durations(schedule, lane.forward, 2));
}

bool finds(const ScheduleInput& input, const Schedule& schedule, std::string_view what) {
  const std::vector<std::string> problems = schedule_problems(input, schedule);
  return std::any_of(problems.begin(), problems.end(),
                     [&](const std::string& p) { return p.find(what) != std::string::npos; });
}

}  // namespace

TEST_CASE("1f1b in pairs: two forwards more ahead for every stage that follows, and one") {
  const LaneCase lane = equal(4, 1);
  const Schedule schedule = schedule_policy("1f1b").make(paired(lane, 2));
  CHECK(text(schedule.ops[0]) == "F1 F2 F3 F4&B1 B2 B3 B4");
  CHECK(text(schedule.ops[1]) == "F1 F2&B1 F3&B2 F4&B3 B4");
  CHECK(schedule.kept_bound == std::vector<int>{4, 2});
  // F1 of stage 1 is 1..2; its pairs take 3: 2..5, 5..8, 8..11; B4 11..13. Stage 0: F1 to F3 0..3, the pair
  // waits for B1: 5..8, B2 8..10, B3 11..13, B4 13..15.
  const TimedSchedule run = timed("1f1b", lane, 2);
  CHECK(run.makespan == 15);  // (4 + 2 - 1) x 3
  CHECK(run.stages[0][3].start == 5);
  CHECK(run.stages[0][4].start == 5);
  CHECK(run.stages[0][3].end == 8);
  CHECK(run.stages[0][4].end == 8);
  CHECK(draw_schedule(run, 1, {.columns = 40}) ==
        "stage 0  F1F2F3....F4&B1=B2==..B3==B4==\n"
        "stage 1  ..F1F2&B1=F3&B2=F4&B3=B4==....\n"
        "F forward, B backward, & issued together; the number is the micro-batch, from 1\n");
}

TEST_CASE("Interleaved in pairs warms up with one forward more, as Megatron-LM's combined schedule does") {
  const LaneCase lane = equal(4, 2);
  for (int s = 0; s < 2; ++s) {
    const auto plain =
        schedule_policy("interleaved-1f1b").make({2, 2, lane.groups}).ops[static_cast<std::size_t>(s)];
    const auto pairs =
        schedule_policy("interleaved-1f1b").make(paired(lane, 2, 2)).ops[static_cast<std::size_t>(s)];
    const auto warm_up = [](const std::vector<ScheduleOp>& ops) {
      return std::find_if(ops.begin(), ops.end(), [](const ScheduleOp& o) { return o.kind == OpKind::B; }) -
             ops.begin() - 1;  // the forward of the first turn comes before its backward
    };
    CHECK(warm_up(pairs) == warm_up(plain) + 1);
  }
}

TEST_CASE(
    "A pair is as long as its ops, so 1f1b in pairs takes 1f1b's time; interleaved with a few more no "
    "longer") {
  for (int stages = 1; stages <= 6; ++stages)
    for (int count = 1; count <= 16; ++count) {
      CAPTURE(stages);
      CAPTURE(count);
      const TimedSchedule run = timed("1f1b", equal(count, 4), stages);
      CHECK(run.makespan == (count + stages - 1) * 12);
      for (int s = 0; s < stages; ++s)
        CHECK(run.peak_kept[static_cast<std::size_t>(s)] <= std::min(count, 2 * (stages - s)));
    }
}

TEST_CASE("Schedules in pairs are right for any input, and what has no pairs ignores the wish") {
  SplitMix64 random(8);
  for (int round = 0; round < 2000; ++round) {
    const int stages = static_cast<int>(random.next() % 8) + 1;
    const int chunks = static_cast<int>(random.next() % 3) + 1;
    const int rounds = static_cast<int>(random.next() % 4) + 1;
    std::vector<double> lengths(static_cast<std::size_t>(stages * rounds));
    for (double& length : lengths) length = static_cast<double>(random.next() % 50 + 1) * chunks;
    const LaneCase lane = standalone(lengths);
    CAPTURE(stages);
    CAPTURE(chunks);
    CHECK_NOTHROW((void)timed("interleaved-1f1b", lane, stages, chunks));  // it would throw on a deadlock
    const TimedSchedule one = timed("1f1b", lane, stages);
    const double work = 3 * std::accumulate(lengths.begin(), lengths.end(), 0.0);
    CHECK(std::accumulate(one.busy.begin(), one.busy.end(), 0.0) == stages * work);
    CHECK(schedule_policy("zb-h1").make(paired(lane, stages)).ops ==
          schedule_policy("zb-h1").make({stages, 1, lane.groups}).ops);
  }
}

TEST_CASE("The validator knows what can be a pair") {
  const LaneCase lane = equal(3, 1);
  const ScheduleInput input = paired(lane, 2);
  const Schedule right = schedule_policy("1f1b").make(input);  // stage 1: F1 F2&B1 F3&B2 B3
  REQUIRE(schedule_problems(input, right).empty());
  Schedule wrong = right;
  wrong.ops[1].front().with_next = true;  // F1 with F2
  CHECK(finds(input, wrong, "a pair is an F and then a B"));
  wrong = right;
  wrong.ops[1].back().with_next = true;
  CHECK(finds(input, wrong, "without a second"));
  wrong = right;  // F1&B1 F2 F3&B2 B3
  std::swap(wrong.ops[1][1], wrong.ops[1][2]);
  wrong.ops[1][0].with_next = true;
  wrong.ops[1][2].with_next = false;
  CHECK(finds(input, wrong, "its own micro-batch's B"));
  // With 1F1B's own warm-up stage 0 would issue F2 with B1: but B1 comes from stage 1's pair with F2.
  wrong = right;
  wrong.ops[0] = {{OpKind::F, 0, 0},       {OpKind::F, 1, 0, true}, {OpKind::B, 0, 0},
                  {OpKind::F, 2, 0, true}, {OpKind::B, 1, 0},       {OpKind::B, 2, 0}};
  CHECK(finds(input, wrong, "stage 0 waits at F of micro-batch 1 for stage 1's B of micro-batch 0"));
}

TEST_CASE("DualPipe on two ranks, by hand") {
  // P = 2, m = 4: both ranks are middle ones, r = 0 and h = 1. Near and far each have n = 2 micro-batches:
  // rank 0 is entered by 1 and 3, rank 1 by 2 and 4. Step 2: F near, F far. Step 4, once (n - P + r + 1): F
  // near and B far apart, then F far with B near. Step 6: B far whole, B near its input half. Step 8: its W.
  const LaneCase lane = equal(4, 2);
  const Schedule schedule = schedule_policy("dualpipe").make({.stages = 2, .group_sizes = lane.groups});
  CHECK(text(schedule.ops[0]) == "F1 F2 F3 B2 F4&B1 B4 B3 W3");
  CHECK(text(schedule.ops[1]) == "F2 F1 F4 B1 F3&B2 B3 B4 W4");
  CHECK(schedule.bidirectional);
  CHECK(schedule.ops[0][3].whole);
  CHECK_FALSE(schedule.ops[0][7].whole);
  // F takes 2, a whole B 4, halves 2. Both ranks run alike: F 0..2, F 2..4, F 4..6, B 6..10 (rank 0's far one
  // is 2, whose F on rank 0, its last, ended at 4), the pair 10..16 (B1 left rank 1 at 10), B 16..20 (B4
  // needs its own F of the pair), then B3's half when rank 1's B3 has ended at 20: 20..22, W 22..24.
  const TimedSchedule run = timed("dualpipe", lane, 2);
  CHECK(run.makespan == 24);
  CHECK(bubble_ratio(run) == 0);
  CHECK(run.peak_kept == std::vector<int>{3, 3});
}

TEST_CASE("DualPipe's bubble is (P/2 - 1)(F&B + B - 3W), and P + 1 activations are held") {
  // F, the input half of B and W take equally long, as the paper draws them; F&B is F + B here, as nothing is
  // hidden.
  for (int stages = 2; stages <= 12; stages += 2)
    for (int count = 2 * stages; count <= 2 * stages + 12; count += 2) {
      CAPTURE(stages);
      CAPTURE(count);
      const double f = 4, b = 2 * f, w = f;
      const TimedSchedule timed_run =
          equipoise::testing::run("dualpipe", equal(count, f), {.stages = stages});
      CHECK(timed_run.makespan == count * (f + b) + (stages / 2 - 1) * (f + b + b - 3 * w));
      for (const int kept : timed_run.peak_kept) CHECK(kept == stages + 1);
    }
}

TEST_CASE("DualPipe refuses what it cannot order, and the validator a micro-batch in the other direction") {
  const auto make = [](int stages, int count) {
    const LaneCase lane = equal(count, 1);
    return schedule_policy("dualpipe").make({.stages = stages, .group_sizes = lane.groups});
  };
  CHECK_THROWS_AS(make(3, 8), UserError);
  CHECK_THROWS_AS(make(4, 7), UserError);
  CHECK_THROWS_AS(make(4, 6), UserError);
  CHECK_THROWS_AS(one_way_schedule("dualpipe"), UserError);
  CHECK(one_way_schedule("1f1b").name == "1f1b");
  const LaneCase lane = equal(8, 1);
  const ScheduleInput input{.stages = 4, .group_sizes = lane.groups};
  Schedule wrong = make(4, 8);
  wrong.ops[0][0].virtual_stage = 1;
  CHECK(finds(input, wrong, "runs in the other direction"));
  wrong = make(4, 8);
  std::swap(wrong.ops[0].back().micro_batch, wrong.ops[0][9].micro_batch);
  CHECK_FALSE(schedule_problems(input, wrong).empty());
  wrong = make(4, 8);
  for (ScheduleOp& op : wrong.ops[2])
    if (op.kind == OpKind::B && !op.whole) {
      op.whole = true;  // its W is one too many
      break;
    }
  CHECK(finds(input, wrong, "although its B is whole"));
}
