// What holds for every size: closed forms of the makespan, and how schedules relate to each other.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "policies/base/random.h"
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

int peak(const TimedSchedule& timed) {
  return *std::max_element(timed.peak_kept.begin(), timed.peak_kept.end());
}

}  // namespace

TEST_CASE("Equal micro-batches: 1f1b and gpipe take (m + P - 1)(f + b)") {
  for (int stages = 1; stages <= 8; ++stages)
    for (int count = 1; count <= 20; ++count)
      for (const double ratio : {1.0, 2.0, 2.5}) {
        CAPTURE(stages);
        CAPTURE(count);
        CAPTURE(ratio);
        const Setting setting{.stages = stages, .backward_ratio = ratio};
        const double expected = (count + stages - 1) * 4 * (1 + ratio);
        const TimedSchedule one = run("1f1b", equal(count, 4), setting);
        CHECK(one.makespan == expected);
        CHECK(run("gpipe", equal(count, 4), setting).makespan == expected);
        for (int s = 0; s < stages; ++s)
          CHECK(one.peak_kept[static_cast<std::size_t>(s)] == std::min(count, stages - s));
      }
}

TEST_CASE(
    "Unequal micro-batches: the largest through all stages and the others on the first (WLB-LLM, Fig. 5)") {
  // T = sum of all f + b, and P - 1 times the largest. Exact where all forwards precede all backwards: on
  // stages of equal speed each half is a flow shop, which takes sum + (P - 1) max. 1F1B runs ops of other
  // micro-batches while the largest is on the later stages: next to small equal ones it saves at most P - 1
  // of them.
  SplitMix64 random(11);
  for (int round = 0; round < 300; ++round) {
    const int stages = static_cast<int>(random.next() % 8) + 1;
    std::vector<double> lengths;
    for (std::uint64_t j = random.next() % 16 + 1; j > 0; --j)
      lengths.push_back(static_cast<double>(random.next() % 50 + 1));
    const auto closed_form = [&] {
      return 3 * (std::accumulate(lengths.begin(), lengths.end(), 0.0) +
                  (stages - 1) * *std::max_element(lengths.begin(), lengths.end()));
    };
    CAPTURE(stages);
    CHECK(run("gpipe", standalone(lengths), {.stages = stages}).makespan == closed_form());
    const double small = lengths.front();
    std::fill(lengths.begin(), lengths.end(), small);
    lengths[random.next() % lengths.size()] = small * 8;
    const double one = run("1f1b", standalone(lengths), {.stages = stages}).makespan;
    CHECK(one <= closed_form());
    CHECK(one >= closed_form() - (stages - 1) * 3 * small);
  }
}

TEST_CASE("Equal micro-batches: interleaved-1f1b takes (m + (P - 1)/V)(f + b)") {
  for (int stages = 1; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= 4; ++chunks)
      for (int rounds = 1; rounds <= 4; ++rounds) {
        CAPTURE(stages);
        CAPTURE(chunks);
        CAPTURE(rounds);
        const int count = rounds * stages;
        // Lengths of 2V: halves and V-ths are whole numbers.
        const double length = 2.0 * chunks;
        const TimedSchedule timed =
            run("interleaved-1f1b", equal(count, length), {.stages = stages, .virtual_stages = chunks});
        CHECK(timed.makespan == count * length * 3 + (stages - 1) * 2.0 * 3);
        for (int s = 0; s < stages; ++s)
          CHECK(timed.peak_kept[static_cast<std::size_t>(s)] ==
                std::min(count * chunks, 2 * (stages - 1 - s) + (chunks - 1) * stages + 1));
      }
}

TEST_CASE("Equal micro-batches: zb-h1 beats 1f1b within its peak memory") {
  for (int stages = 1; stages <= 8; ++stages)
    for (int count = 1; count <= 24; ++count)
      for (const double ratio : {0.5, 1.0, 2.0, 3.0}) {
        CAPTURE(stages);
        CAPTURE(count);
        CAPTURE(ratio);
        const Setting setting{.stages = stages, .backward_ratio = ratio};
        const double forward = 4;
        const double half = forward * ratio / 2;  // B = W
        const TimedSchedule zero = run("zb-h1", equal(count, forward), setting);
        const TimedSchedule one = run("1f1b", equal(count, forward), setting);
        CHECK(zero.makespan <= one.makespan);
        if (stages > 1) CHECK(zero.makespan < one.makespan);
        CHECK(peak(zero) <= peak(one));
        // Here B = W, so F + B - W = F; with m >= P the bubble is (P - 1) max(F, B).
        if (count >= stages)
          CHECK(zero.makespan == count * (forward + 2 * half) + (stages - 1) * std::max(forward, half));
      }
}

TEST_CASE("zb-h1's bubble is (P - 1) max(F, B, F + B - W) for any split of the backward") {
  for (int stages = 2; stages <= 6; ++stages)
    for (const auto& times :
         {std::array{2, 2, 2}, {2, 3, 1}, {2, 1, 3}, {2, 1, 1}, {2, 3, 3}, {5, 4, 2}, {1, 4, 6}}) {
      const int f = times[0];
      const int b = times[1];
      const int w = times[2];
      CAPTURE(stages);
      CAPTURE(f);
      CAPTURE(b);
      CAPTURE(w);
      const int count = 2 * stages;
      const LaneCase lane = equal(count, 1);
      const Schedule schedule = schedule_policy("zb-h1").make(input_of(lane, {.stages = stages}));
      OpDurations durations = op_durations(schedule, lane.forward, 2);
      for (std::size_t s = 0; s < durations.size(); ++s)
        for (std::size_t i = 0; i < durations[s].size(); ++i) {
          const OpKind kind = schedule.ops[s][i].kind;
          durations[s][i] = kind == OpKind::F ? f : kind == OpKind::B ? b : w;
        }
      CHECK(time_schedule(schedule, durations).makespan ==
            count * (f + b + w) + (stages - 1) * std::max({f, b, f + b - w}));
    }
}

TEST_CASE("Without dependent chunks state-aware-1f1b is 1f1b, op for op") {
  for (int stages = 1; stages <= 6; ++stages)
    for (int count = 0; count <= 12; ++count)
      for (int keep = 1; keep <= 3; ++keep)
        for (const bool strict : {false, true}) {
          CAPTURE(stages);
          CAPTURE(count);
          CAPTURE(keep);
          CAPTURE(strict);
          const LaneCase lane = equal(count, 1);
          const Setting setting{.stages = stages, .keep = keep, .strict_keep = strict};
          const Schedule aware = schedule_policy("state-aware-1f1b").make(input_of(lane, setting));
          const Schedule plain = schedule_policy("1f1b").make(input_of(lane, setting));
          CHECK(aware.ops == plain.ops);
          if (count > 0) CHECK(aware.kept_bound == plain.kept_bound);
        }
}

TEST_CASE("Without slices seq1f1b is 1f1b, and interleaved-1f1b with model chunks, op for op") {
  for (int stages = 2; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int count = 0; count <= 3 * stages; count += chunks == 1 ? 1 : stages) {
        CAPTURE(stages);
        CAPTURE(chunks);
        CAPTURE(count);
        const LaneCase lane = equal(count, 1);
        const ScheduleInput input = input_of(lane, {.stages = stages, .virtual_stages = chunks});
        const Schedule slices = schedule_policy("seq1f1b").make(input);
        const Schedule plain = schedule_policy(chunks == 1 ? "1f1b" : "interleaved-1f1b").make(input);
        CHECK(slices.ops == plain.ops);
        CHECK(slices.kept_bound == plain.kept_bound);
      }
}

TEST_CASE("m documents of k equal slices: seq1f1b takes (k m + (P - 1)/V)(f + b) of a slice") {
  // The bubble is that of k m micro-batches: (P - 1)/(k m + P - 1) without model chunks. Stage s holds P-1-s
  // + k slices; with model chunks, 2(P-1-s) + (V-1)P + k for the k <= P that divide P (Seq1F1B-I), and
  // 2(P-1-s) + k V for multiples of P (SlimPipe).
  for (int stages = 2; stages <= 6; ++stages)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int slices = 1; slices <= 12; ++slices)
        for (int documents = 1; documents <= 5; ++documents) {
          const int count = slices * documents;
          if (chunks > 1 && count % stages != 0) continue;
          CAPTURE(stages);
          CAPTURE(chunks);
          CAPTURE(slices);
          CAPTURE(documents);
          const double length = 2.0 * chunks;
          const LaneCase lane{std::vector<double>(static_cast<std::size_t>(count), length),
                              std::vector<std::int32_t>(static_cast<std::size_t>(documents), slices)};
          const TimedSchedule timed = run("seq1f1b", lane, {.stages = stages, .virtual_stages = chunks});
          CHECK(timed.makespan == count * length * 3 + (stages - 1) * 2.0 * 3);
          if (chunks == 1)
            CHECK(bubble_ratio(timed) == doctest::Approx((stages - 1.0) / (count + stages - 1.0)));
          const bool named = chunks == 1 || slices % stages == 0 || stages % slices == 0;
          for (int s = 0; s < stages && named; ++s) {
            const int behind = (chunks == 1 ? 1 : 2) * (stages - 1 - s);
            const int held = slices % stages == 0 ? slices * chunks : (chunks - 1) * stages + slices;
            CHECK(timed.peak_kept[static_cast<std::size_t>(s)] ==
                  std::min(count * chunks, behind + (chunks == 1 ? slices : held)));
          }
        }
}

TEST_CASE("In step seq1f1b takes as long, with forwards at one time and backwards at another") {
  // Stage s then holds 2(P-1-s) + k slices. Forward i of a stage comes at tick i + s, backward i at tick i +
  // P-1-s. Every stage has the same order of ticks, so that none waits for another in a circle.
  for (int stages = 2; stages <= 6; ++stages)
    for (int slices = 1; slices <= 6; ++slices) {
      const LaneCase lane{std::vector<double>(static_cast<std::size_t>(3 * slices + 1), 2.0),
                          {slices, 1, slices, slices}};
      ScheduleInput input = input_of(lane, {.stages = stages});
      input.in_step = true;
      const Schedule schedule = schedule_policy("seq1f1b").make(input);
      CHECK(schedule_problems(input, schedule).empty());
      const double makespan = time_schedule(schedule, op_durations(schedule, lane.forward, 2)).makespan;
      CHECK(makespan == run("seq1f1b", lane, {.stages = stages}).makespan);
      for (int s = 0; s < stages; ++s) {
        CHECK(schedule.kept_bound[static_cast<std::size_t>(s)] ==
              std::min(3 * slices + 1, 2 * (stages - 1 - s) + slices));
        int forward = s, backward = stages - 1 - s;
        for (const ScheduleOp& op : schedule.ops[static_cast<std::size_t>(s)]) {
          if (op.kind == OpKind::F) {
            CHECK(forward++ <= backward + stages - 1 + slices - 1);
          } else {
            CHECK(std::min(forward, 3 * slices + 1 + s) >=
                  std::min(backward + stages + slices - 1, 3 * slices + 1 + s));
            ++backward;
          }
        }
      }
    }
}

TEST_CASE("Documents of unlike numbers of equal slices leave seq1f1b no more bubble, whatever their order") {
  SplitMix64 random(13);
  for (int round = 0; round < 500; ++round) {
    LaneCase lane;
    for (std::uint64_t g = 1 + random.next() % 10; g > 0; --g)
      lane.groups.push_back(static_cast<std::int32_t>(1 + random.next() % 8));
    const int count = std::accumulate(lane.groups.begin(), lane.groups.end(), 0);
    lane.forward.assign(static_cast<std::size_t>(count), 2);
    const int stages = static_cast<int>(2 + random.next() % 7);
    CAPTURE(round);
    CHECK(run("seq1f1b", lane, {.stages = stages}).makespan == (count + stages - 1) * 6);
    // All kept, state-aware-1f1b is never faster: it has no k - 1 forwards more before its first backward.
    CHECK(run("state-aware-1f1b", lane, {.stages = stages, .keep = 8}).makespan >= (count + stages - 1) * 6);
  }
}

TEST_CASE(
    "Recompute in one slice of four is hidden where stages take turns, and not where all take the same "
    "slice") {
  // Four stages, four documents of four slices, f = 3, b = 6; a slice that is recomputed takes 9 back.
  // Without, (16 + 3) * 9 = 171. A quarter of each slice's layers adds 19 * 3/4. All layers of the first
  // slices, on all stages: one stage after the other is late, and those around it wait. At the k-th backward
  // of the last stage, the k-1st of the one before and so on (InfiniPipe, Eq. 15), all are late together: 4
  // * 3.
  const LaneCase lane{std::vector<double>(16, 3.0), {4, 4, 4, 4}};
  const Schedule schedule = schedule_policy("seq1f1b").make(input_of(lane, {}));
  const auto takes = [&](const auto& recomputed) {  // share of the layers, by stage, slice and place of its B
    OpDurations durations = op_durations(schedule, lane.forward, 2);
    for (int s = 0; s < 4; ++s)
      for (std::size_t i = 0, backward = 0; i < schedule.ops[at(s)].size(); ++i)
        if (const ScheduleOp& op = schedule.ops[at(s)][i]; op.kind == OpKind::B)
          durations[at(s)][i] += 3 * recomputed(s, op.micro_batch % 4, static_cast<int>(backward++));
    return time_schedule(schedule, durations).makespan;
  };
  CHECK(takes([](int, int, int) { return 0.0; }) == 171);
  CHECK(takes([](int, int, int) { return 0.25; }) == 171 + 19 * 0.75);
  CHECK(takes([](int, int slice, int) { return slice == 0 ? 1.0 : 0.0; }) == 210);
  CHECK(takes([](int s, int, int backward) { return (backward + 3 - s) % 4 == 3 ? 1.0 : 0.0; }) == 171 + 12);
}

TEST_CASE("Behind its longest documents seq1f1b holds what 1f1b does; on one stage, a document") {
  // Slices 3, then four standalone: stage 0 of 2 is 3 ahead until document 1 is through, then 1.
  const LaneCase lane{std::vector<double>(7, 1.0), {3, 1, 1, 1, 1}};
  CHECK(orders("seq1f1b", lane, {.stages = 2}) ==
        std::vector<std::string>{"F1 F2 F3 F4 B3 F5 B2 F6 B1 B4 B5 F7 B6 B7",
                                 "F1 F2 F3 B3 F4 B2 F5 B1 B4 B5 F6 B6 F7 B7"});
  CHECK(orders("seq1f1b", lane, {.stages = 1}) ==
        std::vector<std::string>{"F1 F2 F3 B3 B2 B1 F4 B4 F5 B5 F6 B6 F7 B7"});
}

TEST_CASE("Every stage recomputes max(0, n - K) chunks of each group of n") {
  for (int keep = 1; keep <= 5; ++keep)
    for (int stages = 1; stages <= 4; ++stages) {
      const LaneCase lane{std::vector<double>(13, 1.0), {1, 4, 2, 6}};
      int expected = 0;
      for (const int size : lane.groups) expected += std::max(0, size - keep);
      for (const auto& ops :
           schedule_policy("state-aware-1f1b").make(input_of(lane, {.stages = stages, .keep = keep})).ops) {
        const auto recomputes =
            std::count_if(ops.begin(), ops.end(), [](const ScheduleOp& op) { return op.kind == OpKind::R; });
        CHECK(recomputes == expected);
      }
    }
}

TEST_CASE("The last stage holds at most K + 1 chunks of a group, K with strict_keep") {
  // Groups well over K, so that the promise is reached and not only kept.
  for (int keep = 1; keep <= 4; ++keep)
    for (int stages = 2; stages <= 5; ++stages) {
      CAPTURE(keep);
      CAPTURE(stages);
      const LaneCase lane{std::vector<double>(15, 1.0), {1, 8, 6}};
      const auto last = static_cast<std::size_t>(stages - 1);
      CHECK(run("state-aware-1f1b", lane, {.stages = stages, .keep = keep}).peak_kept[last] == keep + 1);
      CHECK(run("state-aware-1f1b", lane, {.stages = stages, .keep = keep, .strict_keep = true})
                .peak_kept[last] == keep);
    }
}

TEST_CASE("Scaling all times leaves the bubble ratio unchanged") {
  SplitMix64 random(7);
  for (const SchedulePolicy& policy : schedule_policies())
    for (int round = 0; round < 20; ++round) {
      std::vector<double> forward(8);
      for (double& value : forward) value = static_cast<double>(random.next() % 50 + 1);
      const LaneCase lane = standalone(forward);
      // A power of two scales every sum exactly.
      LaneCase scaled = lane;
      for (double& value : scaled.forward) value *= 64;
      const TimedSchedule small = run(policy.name, lane, {.hops = {3, false}});
      const TimedSchedule large = run(policy.name, scaled, {.hops = {3 * 64, false}});
      CHECK(large.makespan == 64 * small.makespan);
      CHECK(bubble_ratio(large) == bubble_ratio(small));
    }
}
