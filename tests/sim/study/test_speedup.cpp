// Speed-ups and their intervals: cuts by hand, then what holds for every run.
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "policies/base/random.h"
#include "sim/metrics/metrics.h"

using namespace equipoise;

namespace {

using Steps = std::vector<StepFigures>;

StepFigures step_of(std::int64_t tokens, Picoseconds time) {
  StepFigures r;
  r.work.tokens = tokens;
  r.times.makespan = time;
  return r;
}

Metrics totals(const Steps& steps) {
  Metrics m;
  for (const StepFigures& s : steps) {
    m.tokens += static_cast<double>(s.work.tokens);
    m.seconds += to_seconds(s.times.makespan);
  }
  return m;
}

SpeedUp compared(const Steps& baseline, const Steps& own, std::size_t batches) {
  return speed_up({totals(own), own}, {totals(baseline), baseline}, batches);
}

std::int64_t below(SplitMix64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
}

// Batches of equal tokens, whose times are drawn.
Steps random_steps(SplitMix64& random, int count, std::int64_t tokens) {
  Steps steps;
  for (int i = 0; i < count; ++i) steps.push_back(step_of(tokens, 1'000'000 + below(random, 3'000'000)));
  return steps;
}

}  // namespace

TEST_CASE("A run is cut at equal tokens, a step's time spread evenly over its tokens") {
  // 12 tokens in 4 blocks of 3. Step 1: 6 tokens in 60; step 2: 2 in 50; step 3: 4 in 20.
  // 3 of 60/6; 3 of 60/6; 2 of 50/2 and 1 of 20/4; 3 of 20/4.
  const Steps steps = {step_of(6, 60), step_of(2, 50), step_of(4, 20)};
  CHECK(block_times(steps, 4) == std::vector<Picoseconds>{30, 30, 55, 15});
  // 5 tokens in 2 blocks: 2.5 tokens of 10 each.
  CHECK(block_times(Steps{step_of(5, 50)}, 2) == std::vector<Picoseconds>{25, 25});
  // A step without tokens belongs to the block that ends there; nothing is lost.
  CHECK(block_times(Steps{step_of(4, 8), step_of(0, 3), step_of(4, 8)}, 2) ==
        std::vector<Picoseconds>{11, 8});
}

TEST_CASE("Blocks add up to the run, to the picosecond, however steps and blocks lie") {
  SplitMix64 random(3);
  for (int round = 0; round < 200; ++round) {
    Steps steps;
    Picoseconds total = 0;
    for (std::int64_t n = 1 + below(random, 40); n > 0; --n) {
      steps.push_back(step_of(below(random, 5000), below(random, 1'000'000'000'000)));
      total += steps.back().times.makespan;
    }
    for (const std::size_t blocks : {1U, 4U, 7U, 20U}) {
      const std::vector<Picoseconds> times = block_times(steps, blocks);
      REQUIRE(times.size() == blocks);
      REQUIRE(std::accumulate(times.begin(), times.end(), Picoseconds{0}) == total);
      for (const Picoseconds t : times) REQUIRE(t >= 0);
    }
  }
}

TEST_CASE("The speed-up is of whole runs by time per token, whatever their steps") {
  // 24 s for 12 tokens against 8 s for 12: 3, though no step is three times as fast as another.
  const Steps baseline = {step_of(4, 8), step_of(4, 8), step_of(4, 8)};
  const Steps own = {step_of(8, 6), step_of(4, 2)};
  CHECK(compared(baseline, own, 3).speedup == 3.0);
  // Half of the tokens in a third of the time: 2 s against 8/6 s a token.
  CHECK(*compared(baseline, {step_of(6, 8)}, 3).speedup == doctest::Approx(1.5));
}

TEST_CASE("Fewer than four batches give no interval, and a run that did not happen gives nothing") {
  SplitMix64 random(1);
  const Steps three = random_steps(random, 3, 100), four = random_steps(random, 4, 100);
  CHECK(!compared(three, three, 3).speedup_low);
  CHECK(compared(four, four, 4).speedup_low);
  CHECK(!compared(four, {}, 4).speedup);  // out of memory
  const SpeedUp own = compared({}, four, 4);
  CHECK(!own.speedup);
  CHECK(!own.speedup_low);
}

TEST_CASE("A run against itself is 1, and so is every draw") {
  SplitMix64 random(2);
  for (const int batches : {4, 9, 20, 33}) {
    const Steps steps = random_steps(random, batches, 4096);
    const SpeedUp m = compared(steps, steps, static_cast<std::size_t>(batches));
    CHECK(m.speedup == 1.0);
    CHECK(m.speedup_low == 1.0);
    CHECK(m.speedup_high == 1.0);
  }
}

TEST_CASE("Pairing: what slows both runs alike widens nothing") {
  // Batches differ 4-fold, but each takes twice as long in the baseline.
  SplitMix64 random(4);
  const Steps own = random_steps(random, 20, 4096);
  Steps baseline = own;
  for (StepFigures& s : baseline) s.times.makespan *= 2;
  const SpeedUp m = compared(baseline, own, 20);
  CHECK(m.speedup_low == 2.0);
  CHECK(m.speedup_high == 2.0);
}

TEST_CASE("The interval of four blocks, by hand") {
  // Own blocks take 10 each, the baseline's 10, 10, 10 and 30: a draw that has the last block k times is
  // (40 + 20 k) / 40, k binomial(4, 1/4): P(0) = 0.316, P(4) = 0.004, P(3) = 0.047. So the 2.5 % quantile
  // is k = 0 and the 97.5 % quantile k = 3 (more than 3: 0.4 %; 3 or more: 5.1 %).
  const Steps own(4, step_of(5, 10));
  Steps baseline = own;
  baseline[3].times.makespan = 30;
  const SpeedUp m = compared(baseline, own, 4);
  CHECK(m.speedup == 1.5);
  CHECK(m.speedup_low == 1.0);
  CHECK(m.speedup_high == 2.5);
}

TEST_CASE("The interval holds the speed-up, and narrows with more documents") {
  SplitMix64 random(5);
  double few = 0, many = 0;
  for (int round = 0; round < 40; ++round) {
    const Steps baseline = random_steps(random, 160, 4096);
    Steps own;  // windows of two batches each, with a tail
    for (int i = 0; i < 80; ++i) own.push_back(step_of(8000, 1'500'000 + below(random, 3'000'000)));
    own.push_back(step_of(160 * 4096 - 80 * 8000, 500'000));
    const SpeedUp m = compared(baseline, own, 160);
    REQUIRE(*m.speedup_low <= *m.speedup);
    REQUIRE(*m.speedup <= *m.speedup_high);
    many += *m.speedup_high - *m.speedup_low;
    const Steps first(baseline.begin(), baseline.begin() + 20);
    const SpeedUp of_first = compared(first, Steps(own.begin(), own.begin() + 10), 20);
    few += *of_first.speedup_high - *of_first.speedup_low;
  }
  CHECK(many < 0.7 * few);
}
