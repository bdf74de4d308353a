// equipoise: its clock against closed forms and a plain recurrence, its packing against every packing there
// is in small cases, and what it promises in random ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/loader.h"
#include "policies/make_plan.h"
#include "policies/packing/equipoise.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/packing.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"
#include "policies/validator.h"
#include "tests/policies/equipoise_cases.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

std::vector<PassTimes> equal_times(std::size_t count, double forward, double backward) {
  return std::vector<PassTimes>(count, PassTimes{forward, backward});
}

// 1F1B stage by stage, op by op, as often as there are ops: slow, and nothing that could be wrong.
double plain_1f1b(int stages, const std::vector<PassTimes>& times) {
  const std::size_t m = times.size();
  const auto p = static_cast<std::size_t>(stages);
  std::vector<std::vector<double>> forward(p, std::vector<double>(m, 0)), backward = forward;
  double end = 0;
  for (std::size_t round = 0; round < 2 * p * m; ++round) {
    for (std::size_t s = 0; s < p; ++s) {
      double clock = 0;
      std::size_t f = 0;
      const auto run_forward = [&] {
        clock = std::max(clock, s > 0 ? forward[s - 1][f] : 0) + times[f].forward / stages;
        forward[s][f++] = clock;
      };
      while (f < std::min(m, p - 1 - s)) run_forward();
      for (std::size_t b = 0; b < m; ++b) {
        if (f < m) run_forward();
        clock = std::max(clock, s + 1 < p ? backward[s + 1][b] : forward[s][b]) + times[b].backward / stages;
        backward[s][b] = clock;
      }
      end = std::max(end, clock);
    }
  }
  return end;
}

struct Small {
  PackOptions options;
  std::vector<Slice> slices;
  std::size_t per_lane = 0;
};

// The least time of all ways to put the documents into the micro-batches, whole on a rank or spread.
double least_time(const Small& c, StepPacker& packer) {
  const std::size_t bins = c.per_lane * static_cast<std::size_t>(c.options.lanes);
  const auto ranks = static_cast<std::size_t>(c.options.context);
  const std::size_t choices = bins * (ranks > 1 ? ranks + 1 : 1);
  std::vector<std::size_t> chosen(c.slices.size(), 0);
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    Step step;
    step.lanes.resize(static_cast<std::size_t>(c.options.lanes));
    for (Lane& lane : step.lanes) {
      lane.context = c.options.context;
      lane.micro_batches.resize(c.per_lane);
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const std::size_t bin = chosen[i] % bins, place = chosen[i] / bins;
      MicroBatch& into = step.lanes[bin / c.per_lane].micro_batches[bin % c.per_lane];
      into.slices.push_back(c.slices[i]);
      into.placement.push_back(place == 0 ? kDistributed : static_cast<int>(place) - 1);
    }
    least = std::min(least, packer.seconds(step));
    std::size_t digit = 0;
    while (digit < chosen.size() && ++chosen[digit] == choices) chosen[digit++] = 0;
    if (digit == chosen.size()) break;
  }
  return least;
}

// In [0, 1).
double share(SplitMix64& random) {
  return static_cast<double>(random.next() % 1000000) / 1000000;
}

std::vector<Slice> slices_of_lengths(const std::vector<std::int64_t>& lengths) {
  std::vector<Slice> slices;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    slices.push_back({static_cast<std::int64_t>(i), 0, lengths[i]});
  return slices;
}

// Time of all steps by the policy's own clock.
double own_seconds(const Plan& plan, const PackOptions& options, const Workload& workload) {
  LaneShapes lanes(options.stages, options.chunks);
  StepPacker packer(options, {}, workload, lanes);
  double seconds = 0;
  for (const Step& step : plan.steps) seconds += packer.seconds(step);
  return seconds;
}

std::int64_t largest_micro_batch(const Plan& plan) {
  std::int64_t most = 0;
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) most = std::max(most, m.tokens());
  return most;
}

}  // namespace

TEST_CASE("the pipeline's clock has the closed forms of equal micro-batches") {
  // 1F1B: (m + P - 1)(f + b) of a stage; interleaved: (m + (P - 1) / V)(f + b).
  PipelineClock one(4, 1, 16);
  CHECK(one.makespan(equal_times(16, 4, 8)) == doctest::Approx(3.0 * (16 + 3)));
  PipelineClock two(4, 2, 16);
  CHECK(two.makespan(equal_times(16, 4, 8)) == doctest::Approx(3.0 * (16 + 1.5)));
  PipelineClock alone(1, 1, 5);
  CHECK(alone.makespan(equal_times(5, 1, 2)) == doctest::Approx(15));
}

TEST_CASE("two unequal micro-batches on two stages, by hand") {
  // A stage takes F 1 and 2, B 2 and 4. Stage 0: F0 0-1, F1 1-3. Stage 1: F0 1-2, B0 2-4, F1 4-6, B1 6-10.
  // Stage 0 again: B0 4-6, B1 10-14.
  PipelineClock clock(2, 1, 2);
  const PassTimes times[] = {{2, 4}, {4, 8}};
  CHECK(clock.makespan(times) == doctest::Approx(14));
  // Its bound: 18 / 2 of work on a stage, 1 for the first forward to come and 4 for the last backward to go.
  CHECK(clock.least(18, times[0], times[1]) == doctest::Approx(14));
}

TEST_CASE("lanes that share work wait for each other with the rest alone, by hand") {
  // 10 and 30 tokens at 0.1 + 0.2 a token: of their own the lanes have 2 + 4 and 1 + 1, together 20 tokens.
  SharedPlace place({0.1, 0.2}, 2);
  place.add({3, 6}, 10);
  place.add({4, 7}, 30);
  CHECK(place.times().forward == doctest::Approx(2 + 2));
  CHECK(place.times().backward == doctest::Approx(4 + 4));
  // Shared with an empty lane the work of one takes half as long.
  SharedPlace half({0.1, 0.2}, 2);
  half.add({4, 7}, 30);
  CHECK(half.times().total() == doctest::Approx(1 + 1 + 1.5 + 3));
}

TEST_CASE("the clock is that of 1F1B for unequal micro-batches, and never below its bound") {
  SplitMix64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int stages = 1 + static_cast<int>(random.next() % 5);
    std::vector<PassTimes> times(1 + random.next() % 9);
    double sum = 0;
    for (PassTimes& t : times) {
      t = {1.0 + static_cast<double>(random.next() % 50), 1.0 + static_cast<double>(random.next() % 90)};
      sum += t.total();
    }
    PipelineClock clock(stages, 1, times.size());
    const double makespan = clock.makespan(times);
    CHECK(makespan == doctest::Approx(plain_1f1b(stages, times)));
    CHECK(clock.least(sum, times.front(), times.back()) <= makespan * (1 + 1e-12));
  }
}

TEST_CASE("several lanes at once have the same makespans, to the bit") {
  SplitMix64 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const int stages = 1 + static_cast<int>(random.next() % 4),
              chunks = 1 + static_cast<int>(random.next() % 3);
    PipelineClock clock(stages, chunks, static_cast<std::size_t>(stages) * (1 + random.next() % 4));
    std::vector<PassTimes> times(clock.micro_batches());
    std::vector<PipelineClock::AtOnce> all(2 * times.size());
    std::array<double, PipelineClock::kAtOnce> alone{};
    for (std::size_t k = 0; k < PipelineClock::kAtOnce; ++k) {
      for (std::size_t m = 0; m < times.size(); ++m) {
        times[m] = {1 + share(random), 1 + 2 * share(random)};
        all[2 * m][k] = times[m].forward;
        all[2 * m + 1][k] = times[m].backward;
      }
      alone[k] = clock.makespan(times);
    }
    PipelineClock::AtOnce together{};
    clock.makespans(all, together);
    CHECK(together == alone);
  }
}

TEST_CASE("the longest path is as long as the makespan, and a bound on every other time") {
  SplitMix64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const int stages = 2 + static_cast<int>(random.next() % 4),
              chunks = 1 + static_cast<int>(random.next() % 3);
    PipelineClock clock(stages, chunks, static_cast<std::size_t>(stages) * (1 + random.next() % 3));
    std::vector<PassTimes> times(clock.micro_batches()), passes(times.size());
    for (PassTimes& t : times) t = {share(random), 2 * share(random)};
    LongestPaths paths;
    paths.reset(times.size());
    double makespan = clock.makespan(times);
    for (int change = 0; change < 40; ++change) {
      clock.longest_path(passes);
      double length = 0;
      for (std::size_t m = 0; m < times.size(); ++m)
        length += passes[m].forward * times[m].forward + passes[m].backward * times[m].backward;
      CHECK(length == doctest::Approx(makespan).epsilon(1e-12));
      paths.add(passes, length);
      const std::size_t one = random.next() % times.size(), other = (one + 1) % times.size();
      const PlaceChange changes[] = {{one, {share(random) - times[one].forward, 0}},
                                     {other, {0, share(random) - times[other].backward}}};
      const double bound = paths.longest_after(changes);
      for (const PlaceChange& c : changes) {
        times[c.place].forward += c.more.forward;
        times[c.place].backward += c.more.backward;
      }
      makespan = clock.makespan(times);
      CHECK(bound <= makespan * (1 + 1e-12));
      paths.change(changes);
      CHECK(paths.longest_after({}) == bound);
    }
  }
}

TEST_CASE("tapered micro-batches end before equal ones, within the largest allowed") {
  for (const int chunks : {1, 2})
    for (const int stages : {2, 4}) {
      PipelineClock clock(stages, chunks, 16);
      const std::vector<double> shares = best_shares(clock, 0, 1.0 / 3, 0.1);
      CHECK(std::accumulate(shares.begin(), shares.end(), 0.0) == doctest::Approx(1));
      CHECK(*std::max_element(shares.begin(), shares.end()) <= 0.1 + 1e-9);
      std::vector<PassTimes> times;
      for (const double share : shares) times.push_back({share / 3, share * 2 / 3});
      const double even = clock.makespan(equal_times(16, 1.0 / 48, 1.0 / 24));
      CHECK(clock.makespan(times) < 0.99 * even);
      CHECK(shares.front() < 1.0 / 16);
    }
}

TEST_CASE("no packing of a few documents is faster, and most of its own are as fast as any") {
  const ExchangedWorkload workload;
  SplitMix64 random(7);
  int trials = 0, best = 0;
  double worst = 1;
  const auto check = [&](int stages, int lanes, int context, std::size_t per_lane, std::size_t documents) {
    Small c;
    c.options.stages = stages;
    c.options.lanes = lanes;
    c.options.context = context;
    c.per_lane = per_lane;
    c.slices = slices_of_lengths(random_lengths(random, static_cast<std::int64_t>(documents), 200));
    LaneShapes shapes(stages, 1);
    StepPacker packer(c.options, {4000, 4000, true, true}, workload, shapes);
    const auto packed = packer.pack(c.slices, per_lane);
    REQUIRE(packed.has_value());
    Step step;
    step.lanes = *packed;
    const double least = least_time(c, packer), found = packer.seconds(step);
    CHECK(found >= least * (1 - 1e-9));
    ++trials;
    if (found <= least * (1 + 1e-9)) ++best;
    worst = std::max(worst, found / least);
  };
  for (int trial = 0; trial < 30; ++trial) {
    check(2, 1, 1, 3, 6);  // 729 packings: order and sizes
    check(3, 1, 1, 2, 8);  // 256
    check(1, 2, 2, 1, 5);  // 7,776: lanes, and ranks or spread
    check(2, 1, 2, 2, 4);  // 1,296
  }
  CAPTURE(best);
  CAPTURE(worst);
  CHECK(best >= trials * 85 / 100);
  CHECK(worst < 1.15);
}

TEST_CASE(
    "a document that all ranks would have to exchange stays whole where another rank has as much to do") {
  // Two of 100 on two ranks: spread, each adds 100 x 140 / 2 + 1000 = 8,000 to both ranks; whole, each takes
  // 14,000 on a rank of its own. One alone: 8,000 spread and 14,000 whole.
  const ExchangedWorkload workload;
  PackOptions options;
  options.context = 2;
  LaneShapes shapes(1, 1);
  StepPacker packer(options, {1000, 100, true, true}, workload, shapes);
  const auto two = packer.pack(slices_of_lengths({100, 100}), 1);
  REQUIRE(two);
  const std::vector<int>& places = two->front().micro_batches.front().placement;
  REQUIRE(places.size() == 2);
  CHECK(places[0] != kDistributed);
  CHECK(places[0] + places[1] == 1);
  const auto one = packer.pack(slices_of_lengths({100}), 1);
  REQUIRE(one);
  CHECK(one->front().micro_batches.front().placement.empty());
}

TEST_CASE("equipoise is never slower than its starts by its own clock, and keeps its bounds") {
  const ExchangedWorkload workload;
  std::size_t most_batches = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    const PackOptions options = random_job(random);
    const std::size_t documents = seed % 10 == 0 ? 600 : 60;  // also more batches than the search looks at
    const DocumentSet set =
        load_documents(random_lengths(random, documents, options.context_window), options, {});
    most_batches = std::max(most_batches, set.batches.size());
    const PackingProblem problem{set.batches, options, workload};
    const Plan plan = make_plan(packing_policy("equipoise"), problem);  // checked by the validator
    CHECK(largest_micro_batch(plan) <= max_tokens(options));
    CHECK(plan_metrics(set.batches, plan).token_delay_mean.value() <= 0.5);
    const double seconds = own_seconds(plan, options, workload);
    for (const char* start :
         {"plain", "fixed-greedy", "lpt", "karmarkar-karp", "wlb", "fixed-greedy 2", "fixed-greedy 4"}) {
      CAPTURE(start);
      const std::string name(start);
      PackOptions wide = options;
      if (std::isdigit(name.back()) != 0) wide.of<FixedLengthOptions>().pack_window = name.back() - '0';
      const Plan other =
          make_plan(packing_policy(name.substr(0, name.find(' '))), {set.batches, wide, workload});
      const PlanMetrics metrics = plan_metrics(set.batches, other);
      if (largest_micro_batch(other) > max_tokens(options) || metrics.token_delay_mean.value() > 0.5)
        continue;
      CHECK(seconds <= own_seconds(other, options, workload) * (1 + 1e-9));
    }
  }
  CHECK(most_batches > 30);
}

TEST_CASE("more memory excludes no number of micro-batches that less memory tries, but its fewest") {
  PackOptions options;
  options.context_window = 4096;
  options.sequences_per_step = 4;
  options.lanes = 2;
  options.documents_per_step = 48;
  std::vector<std::int64_t> before;
  for (const std::int64_t max_tokens : {700, 1500, 4000, 8000, 100000}) {
    CAPTURE(max_tokens);
    options.max_tokens = max_tokens;
    const std::vector<std::int64_t> counts = counts_of(options, 20000);
    CHECK(counts.front() == 2 * (20000 / (2 * max_tokens) + 1));  // the fewest that fit
    for (std::size_t i = 1; i < before.size(); ++i)
      CHECK(std::ranges::find(counts, before[i]) != counts.end());
    before = counts;
  }
  CHECK(before == std::vector<std::int64_t>{2, 4, 6, 8, 12, 16, 24, 32, 48});
}

namespace {

// Counts the micro-batches that packing prices.
class CountedWorkload : public ExchangedWorkload {
 public:
  [[nodiscard]] PassTimes of_micro_batch(const MicroBatch& micro_batch, int degree) const override {
    ++priced;
    return ExchangedWorkload::of_micro_batch(micro_batch, degree);
  }
  mutable int priced = 0;
};

}  // namespace

TEST_CASE("of many batches the search packs the first alone, so that a batch costs less of it") {
  const ExchangedWorkload workload;
  SplitMix64 random(3);
  PackOptions options = random_job(random);
  options.of<EquipoiseOptions>().moves = 100;
  std::vector<std::int64_t> lengths(2000);
  for (std::int64_t& length : lengths) length = 1 + below(random, options.context_window);
  const DocumentSet set = load_documents(lengths, options, {});
  REQUIRE(set.batches.size() > 60);
  const auto priced_in_packing = [&](std::size_t batches) {
    const CountedWorkload counted;
    PlanPrices prices;
    prices.steps_that_fit = [&](const Plan& plan) {
      return each_of(plan.steps, [&](const Step& step) {
        Plan one;
        one.steps = {step};
        return own_seconds(one, options, workload);
      });
    };
    PackOptions found = options;
    find_equipoise_start({set.batches.first(batches), options, counted}, prices, found);
    return static_cast<double>(counted.priced);
  };
  const double first = priced_in_packing(16);
  CHECK((priced_in_packing(60) - first) / 44 < 0.9 * first / 16);  // 0.875: few moves are a part of all
}

TEST_CASE(
    "the search hands over its plan, which is that of the options it found, for its own batches alone") {
  const ExchangedWorkload workload;
  const auto is_same = [](const Plan& a, const Plan& b) {
    const auto same = [](const MicroBatch& one, const MicroBatch& other) {
      return one.slices == other.slices && one.placement == other.placement && one.chunk == other.chunk &&
             one.recompute_layers == other.recompute_layers;
    };
    const auto alike = [&](const Lane& one, const Lane& other) {
      return one.context == other.context && one.barrier_group == other.barrier_group &&
             std::ranges::equal(one.micro_batches, other.micro_batches, same);
    };
    return std::ranges::equal(a.steps, b.steps, [&](const Step& one, const Step& other) {
      return one.carried == other.carried && one.tail == other.tail &&
             std::ranges::equal(one.lanes, other.lanes, alike);
    });
  };
  int handed = 0, priced = 0;
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed / 2);
    PackOptions options = random_job(random), found = options;
    PlanPrices prices;
    if (seed % 2 == 1) {  // in other CP degrees and with less recompute, by the prices of steps
      prices.steps_that_fit = [&](const Plan& plan) {
        return each_of(plan.steps, [&](const Step& step) {
          Plan one;
          one.steps = {step};
          for (const Lane& lane : step.lanes)
            for (const MicroBatch& micro_batch : lane.micro_batches)
              if (micro_batch.chunk.count > 1) throw UserError("the schedule runs no chunks");
          return own_seconds(one, options, workload);
        });
      };
      prices.layers = [&](std::int64_t length, int degree) {
        return length > options.context_window * degree ? 1 : 0;
      };
      if (seed % 4 == 3) prices.degrees = {1, 2};
    }
    const DocumentSet set = load_documents(random_lengths(random, 90, options.context_window), options, {});
    const DocumentSet other = load_documents(random_lengths(random, 70, options.context_window), options, {});
    find_equipoise_start({set.batches, options, workload}, prices, found);
    PackOptions again = found;
    again.of<EquipoiseOptions>().made.reset();
    CHECK(is_same(plan_equipoise({set.batches, found, workload}),
                  plan_equipoise({set.batches, again, workload})));
    const Plan of_other = plan_equipoise({other.batches, found, workload});
    CHECK(plan_violation(other.batches, of_other, {}) == std::nullopt);
    const bool is_handed = found.of<EquipoiseOptions>().made != nullptr;
    (seed % 2 == 0 ? handed : priced) += is_handed ? 1 : 0;
    if (!is_handed || seed % 2 == 1) continue;
    PackOptions smaller = found;  // the plan is not taken where L_max is lower
    smaller.max_tokens = options.context_window;
    CHECK(largest_micro_batch(plan_equipoise({set.batches, smaller, workload})) <= smaller.max_tokens);
  }
  CHECK(handed > 6);
  CHECK(priced > 6);
}

TEST_CASE(
    "Steps in lanes of other CP degrees: long documents over more ranks, none with more than its ranks "
    "hold") {
  const ExchangedWorkload workload;
  int in_two = 0, wide = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options = random_job(random);
    options.lanes = 4;
    options.context = 4;
    options.sequences_per_step = 16;
    const DocumentSet set = load_documents(random_lengths(random, 200, options.context_window), options, {});
    EquipoiseOptions& own = options.of<EquipoiseOptions>();
    own.start = Start::lpt;
    own.moves = 1000;
    own.keeps.assign(set.batches.size(), 0);
    own.searched = true;
    const std::int64_t of_rank = max_tokens(options) / 4;
    for (std::size_t s = 0; s < set.batches.size(); ++s) {
      const int narrow = 1 << random.next() % 4, more = narrow << random.next() % 2;
      own.degrees.push_back(
          {more, narrow, narrow * of_rank / 2, 1 + static_cast<int>(random.next() % 2), s % 2 == 1});
    }
    const Plan plan = make_plan(packing_policy("equipoise"), {set.batches, options, workload});  // validated
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      const StepDegrees& degrees = own.degrees[s];
      if (plan.steps[s].lanes.front().context == options.context && degrees.wide != options.context)
        continue;  // no room
      std::int64_t ranks[2] = {0, 0};
      for (const Lane& lane : plan.steps[s].lanes) {
        ranks[lane.barrier_group] += lane.context;
        in_two += lane.barrier_group;
        wide += lane.context > options.context ? 1 : 0;
        CHECK((lane.context == degrees.wide || lane.context == degrees.narrow));
        for (const MicroBatch& micro_batch : lane.micro_batches) {
          CHECK(micro_batch.tokens() <= of_rank * lane.context);
          if (degrees.spread) CHECK(micro_batch.placement.empty());
          if (degrees.wide > degrees.narrow)
            for (const Slice& slice : micro_batch.slices)
              CHECK((lane.context == degrees.wide) == (slice.tokens() > degrees.border));
        }
      }
      CHECK(ranks[0] == 16);
      CHECK((ranks[1] == 0 || ranks[1] == 16));
    }
  }
  CHECK(in_two > 100);
  CHECK(wide > 50);
}

TEST_CASE("a wider bound on delay is never slower than half an iteration, and that than none") {
  const ExchangedWorkload workload;
  int faster = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options = random_job(random);
    const DocumentSet set = load_documents(random_lengths(random, 90, options.context_window), options, {});
    const auto seconds_within = [&](double max_delay) {
      options.of<EquipoiseOptions>().max_delay = max_delay;
      const Plan plan = make_plan(packing_policy("equipoise"), {set.batches, options, workload});
      CHECK(plan_metrics(set.batches, plan).token_delay_mean.value() <= max_delay);
      return own_seconds(plan, options, workload);
    };
    const double none = seconds_within(0), half = seconds_within(0.5);
    CHECK(half <= none * (1 + 1e-12));
    for (const double wide : {0.6, 2.0, 8.0}) {
      const double seconds = seconds_within(wide);
      CHECK(seconds <= half * (1 + 1e-12));
      faster += seconds < 0.999 * none ? 1 : 0;
    }
  }
  CHECK(faster > 20);
}

TEST_CASE("a micro-batch recomputes what the tokens of its fullest rank ask for, by hand") {
  // 200 tokens fit as they are, and 20 more with each layer that is recomputed; L_max of 250 takes three.
  PackOptions options;
  options.context = 2;
  options.max_tokens = 250;
  PlanPrices prices;
  prices.layers = [](std::int64_t tokens, int degree) {
    CHECK(degree == 2);
    return static_cast<int>(std::max<std::int64_t>(0, (tokens - 200 + 19) / 20));
  };
  const std::vector<std::int64_t> most = tokens_by_recompute(options, prices);
  CHECK(most == std::vector<std::int64_t>{200, 220, 240, 250});
  options.max_tokens = 200;
  CHECK(tokens_by_recompute(options, prices).empty());
  MicroBatch m;
  m.slices = slices_of_lengths({100, 60, 60});
  CHECK(least_recompute(m, 2, most) == 1);  // all spread: 220
  m.placement = {kDistributed, 0, 1};
  CHECK(least_recompute(m, 2, most) == 1);  // as if 100 + 2 x 60
  m.placement = {kDistributed, 0, kDistributed};
  CHECK(least_recompute(m, 2, most) == kStudyRecompute);  // 160 + 2 x 60 is above L_max
  m.placement = {0, 1, 1};
  CHECK(least_recompute(m, 2, most) == 2);  // 2 x 120
  CHECK(least_recompute(m, 2, {}) == kStudyRecompute);
}

TEST_CASE("the search ends where a document finds no room, however many micro-batches there are") {
  const std::vector<GlobalBatch> batches = document_batches({{4000, 10, 20, 30}, {10, 20, 30, 40}});
  PackOptions options;
  options.context_window = 2048;
  options.lanes = 2;
  options.micro_batches = 64;
  options.max_tokens = 2000;
  PackOptions found = options;
  CHECK(find_equipoise_start({batches, options, ExchangedWorkload()}, {}, found).empty());
}

TEST_CASE("a batch of very many documents is not searched: its steps are those of wlb") {
  PackOptions options;
  options.context_window = 1 << 24;
  options.lanes = 2;
  options.micro_batches = 4;
  options.max_tokens = 1 << 24;
  SplitMix64 random(5);
  std::vector<std::int64_t> lengths((1 << 18) + 1);
  for (std::int64_t& length : lengths) length = 1 + below(random, 100);
  const std::vector<GlobalBatch> batches = document_batches({lengths});
  PackOptions found = options;
  const Notes notes = find_equipoise_start({batches, options, ExchangedWorkload()}, {}, found);
  REQUIRE(notes.size() == 1);
  CHECK(notes.front().kind == "too_large_to_search");
  CHECK(found.of<EquipoiseOptions>().start == Start::wlb);
  CHECK(found.of<EquipoiseOptions>().keeps == std::vector<char>{1});
}

TEST_CASE("moves are an effort: the plan is the same each time, and no worse than the one without any") {
  const ExchangedWorkload workload;
  SplitMix64 random(3);
  PackOptions options = random_job(random);
  options.stages = 4;
  options.chunks = options.lane_round = 1;
  const DocumentSet set = load_documents(random_lengths(random, 200, options.context_window), options, {});
  double before = std::numeric_limits<double>::infinity();
  for (const std::int64_t moves : {0, 3000}) {
    options.of<EquipoiseOptions>().moves = moves;
    options.of<EquipoiseOptions>().start = Start::lpt;
    const PackingProblem problem{set.batches, options, workload};
    const Plan plan = make_plan(packing_policy("equipoise"), problem);
    const Plan again = make_plan(packing_policy("equipoise"), problem);
    REQUIRE(plan.steps.size() == again.steps.size());
    for (std::size_t s = 0; s < plan.steps.size(); ++s)
      CHECK(ids_of(plan.steps[s]) == ids_of(again.steps[s]));
    const double seconds = own_seconds(plan, options, workload);
    CHECK(seconds < before);
    before = seconds;
  }
  options.of<EquipoiseOptions>().taper = false;
  const Plan equal = make_plan(packing_policy("equipoise"), {set.batches, options, workload});
  CHECK(own_seconds(equal, options, workload) > before);
}

TEST_CASE("pieces of a document that plain's windows cut run in their order") {
  const ExchangedWorkload workload;
  std::size_t cut = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options = random_job(random);
    options.documents_per_step = 8 + below(random, 24);
    options.of<EquipoiseOptions>().start = Start::plain;
    const std::vector<std::int64_t> lengths = random_lengths(random, 60, options.context_window);
    const DocumentSet set = load_documents(lengths, options, {});
    const Plan plan = make_plan(packing_policy("equipoise"), {set.batches, options, workload});  // validated
    std::size_t slices = 0;
    for (const Step& step : plan.steps)
      for (const Lane& lane : step.lanes)
        for (const MicroBatch& m : lane.micro_batches) slices += m.slices.size();
    cut += slices - lengths.size();
  }
  CHECK(cut > 100);
}

TEST_CASE("max_delay lets documents wait or not, and place keeps them whole on a rank or not") {
  // One document of 240 a batch, the rest short: alone it is what its micro-batch takes.
  const ExchangedWorkload workload;
  PackOptions options;
  options.context_window = 256;
  options.sequences_per_step = 4;
  options.context = 2;
  options.of<EquipoiseOptions>().moves = 500;
  std::vector<std::vector<std::int64_t>> lengths(12);
  for (std::vector<std::int64_t>& batch : lengths) {
    batch = {240};
    for (int i = 0; i < 40; ++i) batch.push_back(14);
  }
  const std::vector<GlobalBatch> batches = document_batches(lengths);
  const PackingProblem problem{batches, options, workload};
  const auto made = [&] { return make_plan(packing_policy("equipoise"), problem); };
  const auto placed = [](const Plan& plan) {
    for (const Step& step : plan.steps)
      for (const Lane& lane : step.lanes)
        for (const MicroBatch& m : lane.micro_batches)
          if (!m.placement.empty()) return true;
    return false;
  };
  CHECK(placed(made()));
  options.of<EquipoiseOptions>().place = false;
  CHECK_FALSE(placed(made()));
  options.lanes = 4;
  options.of<EquipoiseOptions>().max_delay = 10;
  const Plan waiting = made();
  CHECK(plan_metrics(batches, waiting).token_delay_mean.value() > 0);
  options.of<EquipoiseOptions>().max_delay = 0;
  const Plan prompt = made();
  CHECK(plan_metrics(batches, prompt).token_delay_mean.value() == 0);
  CHECK(own_seconds(waiting, options, workload) < own_seconds(prompt, options, workload));
}
