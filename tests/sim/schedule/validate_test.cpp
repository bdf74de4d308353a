// The validator finds each kind of fault that a right schedule is given.
#include <algorithm>

#include "policies/base/random.h"
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

const std::vector<std::int32_t> kGroups{1, 3};

ScheduleInput grouped(int keep) {
  return {.stages = 3, .virtual_stages = 1, .group_sizes = kGroups, .keep = keep};
}

// Whether some problem holds the text.
bool finds(const ScheduleInput& input, const Schedule& schedule, std::string_view text) {
  const std::vector<std::string> problems = schedule_problems(input, schedule);
  CAPTURE(problems.empty() ? std::string("no problem") : problems.front());
  const bool found = std::any_of(problems.begin(), problems.end(),
                                 [&](const std::string& p) { return p.find(text) != std::string::npos; });
  CHECK(found);
  return found;
}

void swap_ops(std::vector<ScheduleOp>& ops, ScheduleOp a, ScheduleOp b) {
  std::iter_swap(std::find(ops.begin(), ops.end(), a), std::find(ops.begin(), ops.end(), b));
}

}  // namespace

TEST_CASE("A missing, doubled or foreign op is found") {
  const ScheduleInput input = grouped(2);
  const Schedule right = schedule_policy("state-aware-1f1b").make(input);
  REQUIRE(schedule_problems(input, right).empty());

  Schedule wrong = right;
  wrong.ops[1].erase(std::find(wrong.ops[1].begin(), wrong.ops[1].end(), ScheduleOp{OpKind::B, 2, 0}));
  finds(input, wrong, "stage 1: B of micro-batch 2 is missing");
  wrong = right;
  wrong.ops[2].push_back({OpKind::B, 0, 0});
  finds(input, wrong, "stage 2: B of micro-batch 0 runs twice");
  wrong = right;
  wrong.ops[0].erase(std::find(wrong.ops[0].begin(), wrong.ops[0].end(), ScheduleOp{OpKind::R, 1, 0}));
  finds(input, wrong, "stage 0: R of micro-batch 1 is missing after D");
  wrong = right;
  wrong.ops[0].push_back({OpKind::F, 9, 0});
  finds(input, wrong, "out of range");
  wrong = right;
  wrong.micro_batches = 3;
  finds(input, wrong, "holds 3 micro-batches, the input has 4");
}

TEST_CASE("Wrong order is found: B before F, R before D, W before B, chunks of a group") {
  const ScheduleInput input = grouped(2);
  const Schedule right = schedule_policy("state-aware-1f1b").make(input);
  Schedule wrong = right;
  swap_ops(wrong.ops[2], {OpKind::F, 0, 0}, {OpKind::B, 0, 0});
  finds(input, wrong, "stage 2: B of micro-batch 0 runs before its F or R");
  wrong = right;
  swap_ops(wrong.ops[2], {OpKind::D, 1, 0}, {OpKind::R, 1, 0});
  finds(input, wrong, "stage 2: R of micro-batch 1 runs before its D");
  wrong = right;
  swap_ops(wrong.ops[0], {OpKind::F, 2, 0}, {OpKind::F, 3, 0});
  finds(input, wrong, "before that of the chunk whose KV it reads");
  wrong = right;
  swap_ops(wrong.ops[0], {OpKind::B, 2, 0}, {OpKind::B, 3, 0});
  finds(input, wrong, "before that of the later chunk whose KV gradients it needs");

  const std::vector<std::int32_t> two{1, 1};
  const ScheduleInput flat{.stages = 2, .virtual_stages = 1, .group_sizes = two};
  Schedule split = schedule_policy("zb-h1").make(flat);
  swap_ops(split.ops[1], {OpKind::B, 1, 0}, {OpKind::W, 1, 0});
  finds(flat, split, "stage 1: W of micro-batch 1 runs before its B");
}

TEST_CASE("A broken memory promise is found") {
  const ScheduleInput input = grouped(3);
  Schedule wrong = schedule_policy("state-aware-1f1b").make(input);
  wrong.kept_bound[2] = 2;
  finds(input, wrong, "stage 2: F of micro-batch 3 makes 3 kept activations, promised were at most 2");
}

TEST_CASE("A deadlock between stages whose own orders are right is found") {
  const std::vector<std::int32_t> two{1, 1};
  const ScheduleInput input{.stages = 2, .virtual_stages = 1, .group_sizes = two};
  Schedule wrong = schedule_policy("gpipe").make(input);
  wrong.ops[0] = {{OpKind::F, 0, 0}, {OpKind::B, 0, 0}, {OpKind::F, 1, 0}, {OpKind::B, 1, 0}};
  finds(input, wrong, "stage 0 waits at B of micro-batch 0 for stage 1's B of micro-batch 0");
}

TEST_CASE("Any exchange of two ops on one stage that the validator passes still runs to the end") {
  // Compares the verdict of the validator with what the engine does, on schedules that are nearly right.
  SplitMix64 random(23);
  int passed = 0;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const ScheduleInput input = grouped(1 + static_cast<int>(random.next() % 3));
    Schedule schedule = schedule_policy("state-aware-1f1b").make(input);
    std::vector<ScheduleOp>& ops = schedule.ops[random.next() % schedule.ops.size()];
    const std::size_t i = random.next() % (ops.size() - 1);
    std::swap(ops[i], ops[i + 1]);
    const bool right = schedule_problems(input, schedule).empty();
    if (right) CHECK_NOTHROW(time_schedule(schedule, op_durations(schedule, std::vector<double>(4, 1.0), 2)));
    ++(right ? passed : refused);
  }
  CHECK(passed > 0);
  CHECK(refused > 0);
}
