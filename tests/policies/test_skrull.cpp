// Skrull's placements and packing against hand-derived cases, with cost = length^2.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/packing/skrull.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

using Ranks = std::vector<int>;

struct Case {
  std::vector<std::int64_t> tokens;
  int ranks;
  std::int64_t bucket;
  bool rollback = true;
};

skrull::Placement place(skrull::PlaceFn rule, const Case& c) {
  std::vector<double> cost;
  for (const std::int64_t t : c.tokens) cost.push_back(static_cast<double>(t * t));
  return rule({c.tokens, cost, c.ranks, c.bucket, c.rollback});
}

std::vector<Ranks> placements_of(const Step& step) {
  std::vector<Ranks> all;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& batch : lane.micro_batches) all.push_back(batch.placement);
  return all;
}

PackOptions skrull_options(int lanes, int context, std::int64_t bucket) {
  PackOptions options;
  options.lanes = lanes;
  options.context = context;
  options.bucket_size = bucket;
  options.verify = true;
  return options;
}

constexpr int kD = kDistributed;

}  // namespace

TEST_CASE("DACP: least load first, ties to the lower rank") {
  // 1 -> rank 0 (tie), 2 -> rank 1 (load 0), 3 -> rank 0 (1 < 4), 4 -> rank 1 (4 < 10): tokens 4 and 6.
  CHECK(place(skrull::place_dacp, {{1, 2, 3, 4}, 2, 8}).rank_of == Ranks{0, 1, 0, 1});
}

TEST_CASE("DACP: the rank with the most room where the least loaded is full") {
  // C = 6: 3 -> 0, 3 -> 1, 3 -> 0 (tie at load 9), 3 -> 1. Both full; nothing more fits anywhere.
  CHECK(place(skrull::place_dacp, {{3, 3, 3, 3}, 2, 6}).rank_of == Ranks{0, 1, 0, 1});
  // The least loaded and the roomiest rank differ only if cost and tokens disagree: cost 5, 1, 1, 1 on
  // lengths 1, 2, 2, 3 and C = 5. 1 -> rank 0 (load 5), 2 -> rank 1 (1), 2 -> rank 1 (2, room 1), 3: the
  // least loaded is rank 1 with room 1; rank 0 has room 4 and takes it.
  const std::vector<std::int64_t> tokens = {1, 2, 2, 3};
  const std::vector<double> cost = {5, 1, 1, 1};
  CHECK(skrull::place_dacp({tokens, cost, 2, 5, true}).rank_of == Ranks{0, 1, 1, 0});
}

TEST_CASE("DACP: a document that fits no rank is distributed, counted in halves of a token") {
  // C = 5, N = 2: 2 -> 0, 3 -> 1 (room 3 and 2), 5 fits neither; the fullest rank has 2 < 5/2: roll back its
  // only document, 3: rank 1 holds 3/2, rank 0 holds 2 + 3/2. Retry 5: the fullest rank has 5 - 3.5 = 1.5
  // < 2.5: roll back 2 too: both hold 5/2, and 5 takes the other half: 10 tokens in two buckets of 5, exactly
  // full.
  const skrull::Placement full = place(skrull::place_dacp, {{2, 3, 5}, 2, 5});
  CHECK(full.rank_of == Ranks{kD, kD, kD});
  CHECK(full.fits);
  // One token more does not fit, and there is nothing left to roll back.
  CHECK(place(skrull::place_dacp, {{2, 3, 6}, 2, 5}).failed);
  // Lengths 1, 3, 5: after 3 is rolled back rank 0 holds 1 + 3/2 and has 2.5 = 5/2 left, which is just
  // enough; rounding either half up would refuse it.
  const skrull::Placement exact = place(skrull::place_dacp, {{1, 3, 5}, 2, 5});
  CHECK(exact.rank_of == Ranks{0, kD, kD});
  CHECK(exact.fits);
}

TEST_CASE("DACP: rolling back charges every rank, and goes on while one of them is over its bucket") {
  // Lengths 1, 7, 7, C = 8, N = 2: 1 -> 0, 7 -> 1, 7 -> 0 (load 1 < 49, and 1 + 7 = 8 fits): nothing to roll
  // back.
  CHECK(place(skrull::place_dacp, {{1, 7, 7}, 2, 8}).rank_of == Ranks{0, 1, 0});
  // N = 2, C = 10: lengths 1, 4, 5, 5, 5. 1 -> 0; 4 -> 1; 5 -> 0 (load 1): 6; 5 -> 1 (16 < 26): 9. The last
  // 5: least load is rank 0 with room 4, most room is rank 0 too; the fullest, rank 1, has 1 < 2.5. Roll back
  // 4: rank 1 holds 5 + 2, rank 0 holds 6 + 2 = 8, nobody is over. Retry: rank 1 has room 3, rank 0 has 2
  // < 2.5. Roll back 1, the shortest on rank 0: it holds 5 + 2.5, rank 1 too. Retry: 2.5 each: distributed.
  // 10 and 10.
  const skrull::Placement p = place(skrull::place_dacp, {{1, 4, 5, 5, 5}, 2, 10});
  CHECK(p.rank_of == Ranks{kD, kD, 0, 1, kD});
  CHECK(p.fits);
  // The printed listing, which forgets to charge rank 0 for the 4, would have kept 1 there: 6 + 2.5 + 2
  // = 10.5.
}

TEST_CASE("DACP without roll-back distributes anyway and says that the budget broke") {
  const skrull::Placement p = place(skrull::place_dacp, {{2, 3, 5}, 2, 5, false});
  CHECK(p.rank_of == Ranks{0, 1, kD});  // rank 1 holds 3 + 2.5 > 5
  CHECK_FALSE(p.failed);
  CHECK_FALSE(p.fits);
}

TEST_CASE("round-robin placement looks at room only and rolls back the oldest") {
  // Room decides, not load: 1 -> 0, 2 -> 1, 3 -> 0 (room 7 and 6), 4 -> 1 (4 and 6).
  CHECK(place(skrull::place_round_robin, {{1, 2, 3, 4}, 2, 8}).rank_of == Ranks{0, 1, 0, 1});
  // In the micro-batch's order: 4 -> 0, 1 -> 1, 3 -> 1. C = 5, N = 2, then 2: no rank has 2 (rooms 1, 1); the
  // fullest is rank 0 (tie) with 1 >= 2/2: distributed, 5 and 5.
  CHECK(place(skrull::place_round_robin, {{4, 1, 3, 2}, 2, 5}).rank_of == Ranks{0, 1, 1, kD});
}

TEST_CASE("gds: largest cost first to the least loaded lane, then every m-th of the ascending documents") {
  // Lengths 5, 1, 4, 3, 2 on 2 lanes: 5 (25) -> 0, 4 (16) -> 1, 3 (9) -> 1 (16 < 25), 2 (4) -> 0 (tie at 25),
  // 1 -> 1 (25 < 29). Lane 0: {2, 5}, lane 1: {1, 3, 4}. C*N = 8: lane 0 has 7 tokens, m = 1. Lane 1 has 8:
  // m = 1 holds 8 >= 8, so m = 2: {1, 4} and {3}. Ids are positions.
  PackOptions options = skrull_options(2, 2, 4);
  const Plan plan = plan_of("gds", document_batches({{5, 1, 4, 3, 2}}), options);
  CHECK(ids_of(plan.steps.at(0)) == std::vector<Ids>{{4, 0}, {1, 2}, {3}});
  CHECK(plan.steps[0].lanes[0].micro_batches.size() == 1);
  CHECK(plan.steps[0].lanes[0].context == 2);
  CHECK(placements_of(plan.steps[0]) == std::vector<Ranks>{{}, {}, {}});
}

TEST_CASE("skrull adds DACP's placements to the micro-batches of gds") {
  // Lane 0: {2, 5} with C = 4: 2 -> 0; 5 fits no rank of 4; the fullest has 2 < 5/2: 2 is rolled back: all
  // distributed, 3.5 each. {1, 4}: 1 -> 0, 4 -> 1. {3} -> 0.
  const Plan plan = plan_of("skrull", document_batches({{5, 1, 4, 3, 2}}), skrull_options(2, 2, 4));
  CHECK(ids_of(plan.steps.at(0)) == std::vector<Ids>{{4, 0}, {1, 2}, {3}});
  CHECK(placements_of(plan.steps[0]) == std::vector<Ranks>{{kD, kD}, {0, 1}, {0}});
}

TEST_CASE("round-robin takes the documents of a micro-batch as gds grouped them, or as they arrived") {
  // C = 20, N = 2, 34 tokens: one micro-batch. Ascending 2, 3, 12, 17: 2 -> 0, 3 -> 1, 12 -> 0 (room 18 and
  // 17), 17 -> 1 (room 17). As they arrived, 2, 12, 3, 17: 2 -> 0, 12 -> 1, 3 -> 0; 17 has no rank (rooms 15
  // and 8) and 17/2 > 8: rank 1 rolls back its oldest, 12, and both ranks are charged 6: rooms 9 and 14; 17/2
  // fits both.
  PackOptions options = skrull_options(1, 2, 20);
  const Plan grouped = plan_of("round-robin", document_batches({{2, 12, 3, 17}}), options);
  CHECK(ids_of(grouped.steps.at(0)) == std::vector<Ids>{{0, 2, 1, 3}});
  CHECK(placements_of(grouped.steps[0]) == std::vector<Ranks>{{0, 1, 0, 1}});
  options.of<RoundRobinOptions>().placement_order = PlacementOrder::arrival;
  const Plan arrival = plan_of("round-robin", document_batches({{2, 12, 3, 17}}), options);
  CHECK(ids_of(arrival.steps.at(0)) == std::vector<Ids>{{0, 1, 2, 3}});
  CHECK(placements_of(arrival.steps[0]) == std::vector<Ranks>{{0, kD, 0, kD}});
  // DACP is defined on ascending documents: the option does not touch it.
  CHECK(ids_of(plan_of("skrull", document_batches({{2, 12, 3, 17}}), options).steps.at(0)) ==
        std::vector<Ids>{{0, 2, 1, 3}});
}

TEST_CASE("without roll-back gds keeps its first split, and the plan says what broke") {
  PackOptions options = skrull_options(2, 2, 4);
  options.rollback = false;
  const Plan plan = plan_of("skrull", document_batches({{5, 1, 4, 3, 2}}), options);
  // Lane 0: 2 -> 0, then 5 distributed anyway: 2 + 2.5 > 4. Lane 1 in one micro-batch {1, 3, 4}: 1 -> 0, 3 ->
  // 1, 4: rank 0 has room 3, rank 1 has 1: distributed, 1 + 2 and 3 + 2 > 4.
  CHECK(placements_of(plan.steps.at(0)) == std::vector<Ranks>{{0, kD}, {0, 1, kD}});
  CHECK(plan.notes == Notes{{"bucket_broken", "", {{"micro_batches", 2}}}});
}

TEST_CASE("a lane without documents still has a micro-batch") {
  const Plan plan = plan_of("skrull", document_batches({{3}}), skrull_options(2, 2, 4));
  CHECK(ids_of(plan.steps.at(0)) == std::vector<Ids>{{0}, {}});
}

TEST_CASE("under a schedule of whole rounds lanes have whole rounds of micro-batches") {
  // Rounds of two, and C*N = 8. Lane 0 has {2, 5}, which one micro-batch would hold: two, {2} and {5}. Lane 1
  // has {1, 3, 4}: two, as without rounds.
  PackOptions options = skrull_options(2, 2, 4);
  options.lane_round = 2;
  const Step step = plan_of("skrull", document_batches({{5, 1, 4, 3, 2}}), options).steps.at(0);
  CHECK(ids_of(step) == std::vector<Ids>{{4}, {0}, {1, 2}, {3}});
  // A lane without documents, and one with a single document, are filled up.
  CHECK(ids_of(plan_of("skrull", document_batches({{3}}), options).steps.at(0)) ==
        std::vector<Ids>{{0}, {}, {}, {}});
  // More memory makes no row impossible: every bucket that holds the longest document has a plan.
  for (options.bucket_size = 3; options.bucket_size < 40; ++options.bucket_size) {
    const Plan plan = plan_of("skrull", document_batches({{5, 1, 4, 3, 2, 2, 5}}), options);
    for (const Lane& lane : plan.steps.at(0).lanes) CHECK(lane.micro_batches.size() % 2 == 0);
  }
}

TEST_CASE("what Skrull cannot hold is refused in one line") {
  CHECK_THROWS_AS(plan_of("skrull", document_batches({{8}}), skrull_options(1, 2, 4)), UserError);
  CHECK_THROWS_WITH_AS(
      plan_of("gds", document_batches({{1}}), skrull_options(1, 2, 0)),
      "bucket_size: expected a number >= 1, found 0; it is the tokens that one CP rank can hold", UserError);
}

TEST_CASE("The best bucket is the fastest of sizes that do not depend on the bound; memory takes the bound") {
  // One lane, two ranks, documents 6, 2 and 2. Sizes: 6 / 2 + 1 = 4 holds the longest, then 5 to 10, which
  // holds the batch of 10 tokens and plans as any larger one. Priced by micro-batches: 4 makes three (6 + 2
  // tokens are not fewer than 4 x 2), 5 makes two (6 + 2 and 2), 6 one.
  const std::vector<GlobalBatch> batches = document_batches({{6, 2, 2}});
  PlanPrices prices;
  std::vector<std::size_t> tried;
  prices.seconds_that_fit = [&](const Plan& plan) {
    tried.push_back(plan.steps[0].lanes[0].micro_batches.size());
    return static_cast<double>(tried.back());
  };
  const QuadraticWorkload workload;
  Notes notes;
  const auto found = [&](std::int64_t bound) {
    PackOptions options = skrull_options(1, 2, bound);
    CHECK(searches_bucket(options));
    tried.clear();
    notes = find_bucket({batches, options, workload}, prices, plan_skrull, options);
    return options.bucket_size;
  };
  CHECK(found(5) == 5);
  CHECK(tried == std::vector<std::size_t>{3, 2});
  CHECK(found(8) == 6);
  CHECK(found(1000) == 6);  // the others are no faster
  CHECK(tried.size() == 7);
  CHECK(notes == Notes{{"bucket_fastest", "", {{"tokens", 6}, {"tried", 7}, {"bound", 1000}}}});
  CHECK(found(4) == 4);
  CHECK(notes == Notes{{"bucket_only_size", "", {{"tokens", 4}, {"bound", 4}}}});
  CHECK(found(3) == 3);  // nothing that holds the longest document: the policy names it
  CHECK(tried.empty());
  PackOptions options;
  kBucketSize.set(options, std::int64_t{-1});
  options.bucket_size = 8;  // derived
  CHECK_FALSE(searches_bucket(options));
  kBucketSize.set(options, std::int64_t{0});
  options.bucket_size = 8;
  CHECK(searches_bucket(options));
  kBucketSize.set(options, std::int64_t{8});
  CHECK_FALSE(searches_bucket(options));
}
