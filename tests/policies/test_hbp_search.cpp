// HBP's choice of groups under costs made up by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "policies/make_plan.h"
#include "policies/packing/hbp.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Machine {
  double rank_tokens = 1e9;  // what a rank holds with no layer checkpointed; all layers: 4 times that
  double attention = 0;      // seconds per token^2 of a document, shared by its CP ranks
  double linear = 1;         // seconds per token
  double exchange = 0;       // seconds per token and CP group of more than one rank
  double fixed = 0;          // of a micro-batch: ZeRO-3's gathers
};

constexpr int kLayers = 10;

// -1 above four times the room; else as many layers as the tokens exceed it, linearly.
int layers_for(const Machine& machine, std::int64_t length, int degree) {
  const double held = static_cast<double>(length) / degree / machine.rank_tokens;
  if (held <= 1) return 0;
  return held > 4 ? -1 : static_cast<int>(std::ceil((held - 1) / 3 * kLayers));
}

// A step ends with its slowest lane, whose micro-batches follow each other; each checkpointed layer costs 3
// %.
double seconds_of(const Machine& machine, const Plan& plan) {
  double total = 0;
  for (const Step& step : plan.steps) {
    double slowest = 0;
    for (const Lane& lane : step.lanes) {
      double busy = 0;
      for (const MicroBatch& m : lane.micro_batches) {
        if (m.slices.empty()) continue;
        if (layers_for(machine, m.pack_length, lane.context) < 0) return kNever;
        double work = 0;
        for (const Slice& s : m.slices) {
          const auto n = static_cast<double>(s.tokens());
          work += machine.linear * n + machine.attention * n * n;
        }
        work *= 1 + 0.03 * std::max(0, m.recompute_layers);
        busy += work / lane.context + machine.fixed;
        if (lane.context > 1) busy += machine.exchange * static_cast<double>(m.tokens());
      }
      slowest = std::max(slowest, busy);
    }
    total += slowest;
  }
  return total;
}

PackOptions eight_gpus() {
  PackOptions options;
  options.gpus = 8;
  options.context_window = 1024;
  options.sequences_per_step = 4;
  return options;
}

GroupSearch choose(const Machine& machine, const Batches& batches, const PackOptions& options) {
  const std::vector<std::int64_t> lengths{64, 128, 256, 512, 1024};
  const QuadraticWorkload cost;
  const GroupCosts costs{[&](std::int64_t length, int degree) { return layers_for(machine, length, degree); },
                         [&](const Plan& plan) { return seconds_of(machine, plan); }};
  return search_hbp_groups({batches, options, cost}, lengths, costs);
}

// The price of a plan with these groups.
double seconds_with(const Machine& machine, const Batches& batches, PackOptions options,
                    const std::vector<Group>& groups) {
  options.groups = groups;
  const QuadraticWorkload cost;
  return seconds_of(machine, make_plan(packing_policy("hbp"), {batches, options, cost}));
}

std::vector<GlobalBatch> mixed_documents(std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 2000; ++i)
    lengths.push_back(random.next() % 20 == 0 ? 300 + static_cast<std::int64_t>(random.next() % 725)
                                              : 1 + static_cast<std::int64_t>(random.next() % 60));
  return document_batches({lengths});
}

}  // namespace

TEST_CASE("a document that no length holds is refused before any plan is priced") {
  int priced = 0;
  PlanPrices prices;
  prices.layers = [](std::int64_t length, int degree) { return length <= 256 * degree ? 0 : -1; };
  prices.seconds_that_fit = [&](const Plan&) { return ++priced; };
  const QuadraticWorkload cost;
  PackOptions options = eight_gpus();
  const std::vector<GlobalBatch> batches = document_batches({{60, 1025, 30}});
  find_hbp_groups({batches, options, cost}, prices, options);
  CHECK(priced == 0);
  CHECK_THROWS_WITH_AS(make_plan(packing_policy("hbp"), {batches, options, cost}),
                       doctest::Contains("1025 tokens, policy hbp places at most 1024"), UserError);
  options.groups.clear();
  options.oversize = Oversize::split;  // then it has work
  find_hbp_groups({batches, options, cost}, prices, options);
  CHECK(priced > 0);
}

TEST_CASE("costly exchanges: short documents run without CP, the longest where they fit") {
  // A rank holds 256 tokens, 1,024 with every layer checkpointed. CP costs as much per token as its linear
  // work, so no document that fits a rank without checkpointing should be spread.
  Machine machine;
  machine.rank_tokens = 256;
  machine.exchange = 1;
  const std::vector<GlobalBatch> batches = mixed_documents(1);
  const GroupSearch found = choose(machine, batches, eight_gpus());
  REQUIRE(!found.groups.empty());
  CHECK(found.groups.front().context == 1);
  CHECK(found.groups.back().length == 1024);
  CHECK(found.seconds == doctest::Approx(seconds_with(machine, batches, eight_gpus(), found.groups)));
  CHECK(found.candidates.size() == 5);
}

TEST_CASE("what a micro-batch costs whatever it holds makes long packs the choice") {
  // Each micro-batch waits for 1,000 tokens' worth of gathers: 64-token packs pay 16 times what 1K packs pay.
  Machine machine;
  machine.fixed = 1000;
  const std::vector<GlobalBatch> batches = mixed_documents(2);
  PackOptions options = eight_gpus();
  options.sequences_per_step = 64;  // 8 packs of 1K a lane
  const GroupSearch found = choose(machine, batches, options);
  REQUIRE(!found.candidates.empty());
  const auto& best = *std::min_element(
      found.candidates.begin(), found.candidates.end(),
      [](const GroupCandidate& a, const GroupCandidate& b) { return a.seconds < b.seconds; });
  CHECK(best.length == 1024);
}

TEST_CASE("never slower than one group of the longest length, at any degree") {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (const double exchange : {0.0, 0.1, 10.0})
      for (const double fixed : {0.0, 500.0, 5e4}) {
        CAPTURE(seed);
        CAPTURE(exchange);
        CAPTURE(fixed);
        Machine machine;
        machine.rank_tokens = 300;
        machine.attention = 1e-3;
        machine.exchange = exchange;
        machine.fixed = fixed;
        const std::vector<GlobalBatch> batches = mixed_documents(seed);
        const GroupSearch found = choose(machine, batches, eight_gpus());
        double alone = kNever;
        for (int degree = 1; degree <= 8; degree *= 2)
          if (const int layers = layers_for(machine, 1024, degree); layers >= 0)
            alone = std::min(alone, seconds_with(machine, batches, eight_gpus(), {{1024, degree, layers}}));
        CHECK(found.seconds <= alone);
      }
}

TEST_CASE("algorithm-1 alone takes its own groups, be they slower than others") {
  int slower = 0;
  PackOptions options = eight_gpus();
  options.of<HbpOptions>().selection = GroupSelection::algorithm_1;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (const double exchange : {0.0, 0.1, 10.0})
      for (const double fixed : {0.0, 500.0, 5e4}) {
        CAPTURE(seed);
        Machine machine;
        machine.rank_tokens = 300;
        machine.attention = 1e-3;
        machine.exchange = exchange;
        machine.fixed = fixed;
        const std::vector<GlobalBatch> batches = mixed_documents(seed);
        const GroupSearch chosen = choose(machine, batches, options);
        CHECK(chosen.groups == select_groups(chosen.candidates));
        CHECK(chosen.plans_tried == 1);
        const double simulated = choose(machine, batches, eight_gpus()).seconds;
        CHECK(chosen.seconds >= simulated);
        if (chosen.seconds > simulated) ++slower;
      }
  CHECK(slower > 0);
}

// The documents have up to 1,024 tokens, or are few and short. Few short ones fit into packs of every length,
// so that a long pack that more room allows looks fast and leaves most of the last iteration empty.
TEST_CASE("more room is never slower") {
  for (std::uint64_t seed = 0; seed < 40; ++seed)
    for (const double fixed : {0.0, 50.0, 2000.0}) {
      CAPTURE(seed);
      CAPTURE(fixed);
      Machine machine;
      machine.attention = 1e-3;
      machine.exchange = 0.05;
      machine.fixed = fixed;
      const bool few = seed % 2 == 1;
      SplitMix64 random(seed);
      const std::vector<GlobalBatch> batches =
          few ? document_batches({random_lengths(random, 30, 60)}) : mixed_documents(100 + seed);
      double before = kNever;
      for (const double room : {10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 500.0, 800.0, 2000.0}) {
        CAPTURE(room);
        if (!few && room < 50) continue;  // no pack holds the longest document
        machine.rank_tokens = room;
        const GroupSearch found = choose(machine, batches, eight_gpus());
        if (found.groups.empty() || (!few && found.groups.back().length < 1024)) continue;
        CHECK(found.seconds <= before);
        before = found.seconds;
      }
    }
}

TEST_CASE("a study's own degree is tried, also where it is no power of two") {
  PackOptions options = eight_gpus();
  CHECK(hbp_degrees(options) == std::vector<int>{1, 2, 4, 8});
  options.gpus = 12;
  options.context = 6;
  CHECK(hbp_degrees(options) == std::vector<int>{1, 2, 4, 8, 6});
}

TEST_CASE("a length that no document asks for is no candidate, however cheap nothing is") {
  const Machine machine;
  const std::vector<GlobalBatch> batches = document_batches({std::vector<std::int64_t>(64, 512)});
  const GroupSearch found = choose(machine, batches, eight_gpus());
  CHECK(found.unused == std::vector<std::int64_t>{64, 128, 256});
  REQUIRE(found.candidates.size() == 2);
  for (const GroupCandidate& c : found.candidates) CHECK(c.seconds > 0);
}

TEST_CASE("no length fits: no groups") {
  Machine machine;
  machine.rank_tokens = 1;
  const std::vector<GlobalBatch> batches = mixed_documents(3);
  CHECK(choose(machine, batches, eight_gpus()).groups.empty());
}
