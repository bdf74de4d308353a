#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "policies/packing/hbp.h"
#include "policies/packing/pack_length.h"
#include "policies/plan_metrics.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

constexpr std::int64_t kK = 1024;

PackOptions two_groups() {
  PackOptions options;
  options.groups = {{4, 1, 0}, {16, 4, 2}};
  options.gpus = 8;
  options.global_tokens = 16;
  options.shuffle = false;
  options.of<IsfOptions>().rounds = 1;
  return options;
}

}  // namespace

TEST_CASE("the paper's example selects 16K and 128K") {
  // Best per group at equal tokens (HBP): 16K is fastest at degree 1, so l_1 = 16K is l_best itself;
  // l_2 = 128K / 8 = 16K is not longer than l_best. Left: {16K, 128K}.
  const std::vector<GroupCandidate> candidates{{8 * kK, 2, 8, 28, 2.69},
                                               {16 * kK, 1, 28, 28, 2.65},
                                               {32 * kK, 8, 8, 28, 2.83},
                                               {64 * kK, 4, 28, 30, 3.01},
                                               {128 * kK, 8, 28, 28, 3.05}};
  CHECK(select_groups(candidates) == std::vector<Group>{{16 * kK, 1, 28}, {128 * kK, 8, 28}});
}

TEST_CASE("groups of degree 1 are added for what one rank of the best and the longest holds") {
  // l_best = 32K at 4: l_1 = 8K. l_max = 128K at 2: l_2 = 64K > 32K. All four.
  const std::vector<GroupCandidate> four{{32 * kK, 4, 5, 6, 1.0}, {128 * kK, 2, 7, 9, 2.0}};
  CHECK(select_groups(four) ==
        std::vector<Group>{{8 * kK, 1, 6}, {32 * kK, 4, 5}, {64 * kK, 1, 9}, {128 * kK, 2, 7}});
  // l_max at 8: l_2 = 16K <= 32K: {l_1, l_best, l_max}.
  const std::vector<GroupCandidate> three{{32 * kK, 4, 5, 6, 1.0}, {128 * kK, 8, 7, 9, 2.0}};
  CHECK(select_groups(three) == std::vector<Group>{{8 * kK, 1, 6}, {32 * kK, 4, 5}, {128 * kK, 8, 7}});
  // The longest is also the fastest.
  CHECK(select_groups(std::vector<GroupCandidate>{{8 * kK, 1, 3, 3, 1.0}}) ==
        std::vector<Group>{{8 * kK, 1, 3}});
}

TEST_CASE("each group has its lanes, degree and checkpointed layers") {
  // Groups 4 (degree 1) and 16 (degree 4) on 8 GPUs: 8 lanes and 2 lanes. 16 tokens an iteration: 4 packs of
  // 4, 1 pack of 16. Document 0 (10) -> long pack, filled from the shorter group in data order: room 6: 3
  // (1), 2 (2), 1 (4); not 4 (3). Left: 4 (3), 4 (5).
  const Plan plan = plan_of("hbp", document_batches({{10, 3, 2, 4, 1, 4}}), two_groups());
  REQUIRE(plan.steps.size() == 2);
  CHECK(plan.steps[0].lanes.size() == 2);
  CHECK(plan.steps[0].lanes[0].context == 4);
  CHECK(plan.steps[0].lanes[0].micro_batches[0].recompute_layers == 2);
  CHECK(plan.steps[0].lanes[0].micro_batches[0].pack_length == 16);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0, 1, 2, 4}});
  CHECK(plan.steps[1].lanes.size() == 8);
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{3}, {5}});
  CHECK(plan.steps[1].tail);  // 2 packs of 4
}

TEST_CASE("balance batching sorts packs by attention, and can be switched off") {
  // Packs of 16 from {16}, {8, 8}, {5, 5, 5}, {16}: sums of squares 256, 128, 75, 256; one pack an iteration.
  // The short documents 1, 1 of the other group are taken by the only pack with room, {5, 5, 5}.
  PackOptions options = two_groups();
  const std::vector<GlobalBatch> batches = document_batches({{16, 8, 8, 5, 5, 5, 16, 1}});
  const Plan balanced = plan_of("hbp", batches, options);
  REQUIRE(balanced.steps.size() == 4);
  CHECK(ids_of(balanced.steps[0]) == std::vector<Ids>{{3, 4, 5, 7}});
  CHECK(ids_of(balanced.steps[1]) == std::vector<Ids>{{1, 2}});
  CHECK(ids_of(balanced.steps[2]) == std::vector<Ids>{{0}});
  CHECK(ids_of(balanced.steps[3]) == std::vector<Ids>{{6}});
  options.of<HbpOptions>().balance_batching = false;
  CHECK(ids_of(plan_of("hbp", batches, options).steps[0]) == std::vector<Ids>{{0}});
}

TEST_CASE("a curriculum starts with the shortest group") {
  PackOptions options = two_groups();
  options.of<HbpOptions>().curriculum_steps = 1;
  // Without it the long group comes first (no shuffle). Two iterations of the short group (4 packs of 4 each
  // iteration, 8 documents of 4), one is moved to the front.
  const std::vector<GlobalBatch> batches = document_batches({{16, 4, 4, 4, 4, 4, 4, 4, 4}});
  const Plan plan = plan_of("hbp", batches, options);
  REQUIRE(plan.steps.size() == 3);
  CHECK(plan.steps[0].lanes[0].context == 1);
  CHECK(plan.steps[1].lanes[0].context == 4);
  CHECK(plan.steps[2].lanes[0].context == 1);
}

TEST_CASE("the greedy fill takes what a linear scan would take") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options = two_groups();
    options.groups = {{5, 1, 0}, {11, 1, 0}, {40, 2, 0}};
    options.global_tokens = 1;  // one pack an iteration
    options.of<HbpOptions>().balance_batching = false;
    const std::vector<std::int64_t> lengths = random_lengths(random, 60, 40);
    // The same by hand: next-fit (one round of isf, no shuffle), then scans in data order.
    std::vector<bool> taken(lengths.size());
    std::vector<Ids> expected;
    const std::vector<std::int64_t> limits{0, 5, 11, 40};
    for (std::size_t g = 3; g >= 1; --g) {
      std::vector<Ids> packs;
      std::int64_t held = 0;
      for (std::size_t d = 0; d < lengths.size(); ++d) {
        if (taken[d] || lengths[d] > limits[g] || lengths[d] <= limits[g - 1]) continue;
        if (packs.empty() || held + lengths[d] > limits[g]) {
          packs.emplace_back();
          held = 0;
        }
        packs.back().push_back(static_cast<std::int64_t>(d));
        held += lengths[d];
      }
      for (Ids& pack : packs) {
        std::int64_t room = limits[g];
        for (const std::int64_t d : pack) room -= lengths[static_cast<std::size_t>(d)];
        for (std::size_t smaller = g - 1; smaller >= 1; --smaller) {
          for (std::size_t d = 0; d < lengths.size(); ++d) {
            const bool here = lengths[d] <= limits[smaller] && lengths[d] > limits[smaller - 1];
            if (taken[d] || !here || lengths[d] > room) continue;
            pack.push_back(static_cast<std::int64_t>(d));
            room -= lengths[d];
            taken[d] = true;
          }
        }
        expected.push_back(pack);
      }
    }
    std::vector<Ids> made;
    for (const Step& step : plan_of("hbp", document_batches({lengths}), options).steps) {
      for (const Ids& ids : ids_of(step)) made.push_back(ids);
    }
    REQUIRE(made == expected);
  }
}

TEST_CASE("impossible groups are refused") {
  PackOptions options = two_groups();
  options.groups = {{4, 16, 0}};
  CHECK_THROWS_WITH_AS(plan_of("hbp", document_batches({{1}}), options),
                       doctest::Contains("above the 8 GPUs"), UserError);
  options.groups = {{4, 1, 0}, {4, 2, 0}};
  CHECK_THROWS_AS(plan_of("hbp", document_batches({{1}}), options), UserError);
  options.groups = {{4, 1, 0}};
  CHECK_THROWS_WITH_AS(plan_of("hbp", document_batches({{5}}), options),
                       doctest::Contains("places at most 4"), UserError);
}
