// Random groups, stages, K and V: every schedule is valid, free of deadlock and within its memory promise.
#include "policies/base/random.h"

#include <algorithm>

#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

int pick(SplitMix64& random, int least, int most) {
  return least + static_cast<int>(random.next() % static_cast<std::uint64_t>(most - least + 1));
}

LaneCase random_lane(SplitMix64& random, const std::string_view name, const Setting& setting) {
  const bool groups = name == "gpipe" || name == "state-aware-1f1b" || name == "seq1f1b";
  LaneCase lane;
  int count = 0;
  const int wanted = name == "interleaved-1f1b" ? setting.stages * pick(random, 0, 4)
                     : name == "dualpipe"       ? 2 * setting.stages + 2 * pick(random, 0, 6)
                                                : pick(random, 0, 20);
  while (count < wanted) {
    const int size = groups && random.next() % 3 == 0 ? pick(random, 2, 12) : 1;
    lane.groups.push_back(size);
    count += size;
  }
  for (; setting.virtual_stages > 1 && count % setting.stages != 0; ++count) lane.groups.push_back(1);
  for (int i = 0; i < count; ++i) lane.forward.push_back(pick(random, 1, 100));
  return lane;
}

// The longest path of one micro-batch, and the work of the busiest stage: no schedule can be faster.
double lower_bound(const LaneCase& lane, const Setting& setting, const TimedSchedule& timed) {
  double bound = *std::max_element(timed.busy.begin(), timed.busy.end());
  const double hops = 2 * setting.hops.time * (setting.stages * setting.virtual_stages - 1);
  for (const double forward : lane.forward)
    bound = std::max(
        bound, setting.stages * forward * (1 + setting.backward_ratio / 2) + (setting.stages > 1 ? hops : 0));
  return bound;
}

// Valid, without a deadlock, within the bounds of what is held, and no faster than possible.
void check_random_inputs(std::uint64_t seed, int rounds) {
  Schedule reused;
  for (const SchedulePolicy& policy : schedule_policies()) {
    SplitMix64 random(seed);
    for (int round = 0; round < rounds; ++round) {
      Setting setting{
          .stages = pick(random, 1, 8), .keep = pick(random, 1, 6), .strict_keep = random.next() % 2 == 0};
      if (policy.name == "interleaved-1f1b" || policy.name == "seq1f1b")
        setting.virtual_stages = pick(random, 1, 4);
      if (policy.bidirectional) setting.stages += setting.stages % 2;
      setting.hops = {static_cast<double>(pick(random, 0, 20)), random.next() % 2 == 0};
      const LaneCase lane = random_lane(random, policy.name, setting);
      const ScheduleInput input = input_of(lane, setting);

      policy.make_into(input, reused);
      const std::vector<std::string> problems = schedule_problems(input, reused);
      const TimedSchedule timed =
          time_schedule(reused, op_durations(reused, lane.forward, setting.backward_ratio), setting.hops);
      bool held = true;
      for (std::size_t s = 0; s < timed.peak_kept.size(); ++s)
        held &= timed.peak_kept[s] <= reused.kept_bound[s];
      const bool good =
          problems.empty() && held && timed.makespan * (1 + 1e-12) >= lower_bound(lane, setting, timed);
      if (good) continue;
      CAPTURE(policy.name);
      CAPTURE(round);
      CAPTURE(setting.stages);
      CAPTURE(setting.virtual_stages);
      CAPTURE(setting.keep);
      CAPTURE(setting.strict_keep);
      CAPTURE(problems.empty() ? std::string("none") : problems.front());
      FAIL("a schedule broke its promise");
    }
  }
}

}  // namespace

TEST_CASE("2,000 random inputs keep what every schedule promises") {
  check_random_inputs(11, 2000);
}

TEST_CASE("10,000 random inputs keep what every schedule promises" * doctest::test_suite("figures")) {
  check_random_inputs(12, 10'000);
}

TEST_CASE("Buffers that held another schedule change nothing") {
  SplitMix64 random(3);
  Schedule reused;
  for (int round = 0; round < 500; ++round)
    for (const SchedulePolicy& policy : schedule_policies()) {
      Setting setting{.stages = pick(random, 1, 6), .keep = pick(random, 1, 3)};
      if (policy.bidirectional) setting.stages += setting.stages % 2;
      const LaneCase lane = random_lane(random, policy.name, setting);
      const Schedule fresh = policy.make(input_of(lane, setting));
      policy.make_into(input_of(lane, setting), reused);
      CHECK(reused.ops == fresh.ops);
      CHECK(reused.kept_bound == fresh.kept_bound);
      CHECK(reused.micro_batches == fresh.micro_batches);
    }
}

TEST_CASE("Without a pipeline never more than K chunks are held") {
  SplitMix64 random(5);
  for (int round = 0; round < 300; ++round) {
    const Setting setting{.stages = 1, .keep = pick(random, 1, 5)};
    const LaneCase lane = random_lane(random, "state-aware-1f1b", setting);
    if (lane.forward.empty()) continue;
    CHECK(run("state-aware-1f1b", lane, setting).peak_kept[0] <= setting.keep);
  }
}
