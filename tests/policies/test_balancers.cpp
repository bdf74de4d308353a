// Packing into the N micro-batches of a step: plain, fixed-greedy, wlb.
#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/wlb.h"
#include "policies/steps.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

PackOptions shape(std::int64_t window, std::int64_t sequences, int lanes = 1) {
  PackOptions options;
  options.context_window = window;
  options.sequences_per_step = sequences;
  options.lanes = lanes;
  return options;
}

}  // namespace

TEST_CASE("plain deals the windows to the lanes in turn") {
  // Windows of 4: |0|1|2|3|4 5|: window i to lane i mod 2, micro-batch i div 2; the last step is short.
  const std::vector<std::int64_t> lengths{4, 4, 4, 4, 1, 3};
  const PackOptions options = shape(4, 4, 2);
  const DocumentSet set = load_documents(lengths, options, {});
  const Plan plan = plan_of("plain", set.batches, options);
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0}, {2}, {1}, {3}});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{4, 5}, {}, {}, {}});  // N micro-batches all the same
}

TEST_CASE("plain puts micro_batch_size windows of a lane into one micro-batch") {
  const std::vector<std::int64_t> lengths{4, 4, 4, 4};
  PackOptions options = shape(4, 4, 2);
  options.micro_batch_size = 2;
  const DocumentSet set = load_documents(lengths, options, {});
  CHECK(ids_of(plan_of("plain", set.batches, options).steps[0]) == std::vector<Ids>{{0, 2}, {1, 3}});
}

TEST_CASE("fixed-greedy balances sums of squares within one window of tokens") {
  // Longest first: 6 -> bin 0 (36); 5 -> bin 1 (25); 4 -> bin 1 is least but has 3 left, bin 0 has 2:
  // nowhere; 3 -> bin 1 (34, full); 2 -> bin 1 is least but full, bin 0 (40, full). 4 comes in an extra step.
  const Plan plan = plan_of("fixed-greedy", document_batches({{2, 3, 4, 5, 6}}), shape(8, 2));
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{4, 0}, {3, 1}});
  CHECK(carried_of(plan.steps[0]) == Ids{2});
  CHECK_FALSE(plan.steps[0].tail);
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{2}, {}});
  CHECK(plan.steps[1].tail);
  CHECK(plan.steps[1].carried.empty());
}

TEST_CASE("fixed-greedy repacks the documents of its pack window over the window's steps") {
  // Two batches {8, 8} and {2, 2} of two bins of 8: 8, 8 -> bins 0, 1 (step 0); 2, 2 -> bins 2, 3 (step 1).
  // Two batches {2, 2} and {8, 8}: the long ones arrive second but are packed first, into step 0.
  PackOptions options = shape(8, 2);
  options.of<FixedLengthOptions>().pack_window = 2;
  const Plan plan = plan_of("fixed-greedy", document_batches({{2, 2}, {8, 8}}), options);
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{2}, {3}});
  CHECK(carried_of(plan.steps[0]) == Ids{0, 1});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{0}, {1}});
}

TEST_CASE("leftovers come in sorted order before the next pack window's documents") {
  // Bins of 8, N = 1. Step 0: 5 placed, 4 and 4 do not fit. Step 1: held 1, 2 (length 4) before document 3
  // (length 4): 4 + 4 fill the bin, document 3 waits for the extra step.
  const Plan plan = plan_of("fixed-greedy", document_batches({{5, 4, 4}, {4}}), shape(8, 1));
  REQUIRE(plan.steps.size() == 3);
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{1, 2}});
  CHECK(carried_of(plan.steps[1]) == Ids{3});
  CHECK(ids_of(plan.steps[2]) == std::vector<Ids>{{3}});
}

TEST_CASE("wlb fills by work first, by tokens second, and carries the rest") {
  // L_max 8, N = 2, W = len^2. 6 -> bin 0 (W 36, 6 tokens); 4 -> bin 1 (16, 4); 4 -> bin 1 (32, 8);
  // 3 -> least W is bin 1 (full); fewest tokens is bin 0 with 6: 9 > 8, carried; 2 -> bin 1 full, bin 0: 8.
  PackOptions options = shape(8, 2);
  options.max_tokens = 8;
  const Plan plan = plan_of("wlb", document_batches({{2, 4, 3, 6, 4}}), options);
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{3, 0}, {1, 4}});
  CHECK(carried_of(plan.steps[0]) == Ids{2});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{2}, {}});
  CHECK(plan.steps[1].tail);
}

TEST_CASE("wlb holds outliers until every micro-batch gets one") {
  // Window 8, one queue: L_1 = 4. N = 2. Step 0: document 0 (length 6) waits. Step 1: document 3 (5) makes it
  // two, both are released: 6 -> bin 0, 5 -> bin 1, then 2 -> bin 1 (25 < 36), 1 -> bin 1 (29 < 36).
  PackOptions options = shape(8, 2);
  options.of<WlbOptions>().queues = 1;
  const Plan plan = plan_of("wlb", document_batches({{6, 3, 2}, {5, 2, 1}}), options);
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{1}, {2}});
  CHECK(carried_of(plan.steps[0]) == Ids{0});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{0}, {3, 4, 5}});
  CHECK(plan.steps[1].carried.empty());
}

TEST_CASE("wlb gives up exactly the N oldest of a queue, once a step, and empties the queues at the end") {
  // L_1 = 4, N = 2: five outliers arrive at once; step 0 takes 0 and 1, the extra steps the rest.
  PackOptions options = shape(8, 2);
  options.of<WlbOptions>().queues = 1;
  options.max_tokens = 8;
  const Plan plan = plan_of("wlb", document_batches({{5, 5, 5, 5, 5}}), options);
  REQUIRE(plan.steps.size() == 3);
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{0}, {1}});
  CHECK(carried_of(plan.steps[0]) == Ids{2, 3, 4});
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{2}, {3}});
  CHECK(ids_of(plan.steps[2]) == std::vector<Ids>{{4}, {}});
  CHECK(plan.steps[2].tail);
}

TEST_CASE("wlb deals bins to lanes by work, inside a lane in packing order") {
  // N = 4 over two lanes. Bins get 7, 6, 5, 4 (W 49, 36, 25, 16): 49 -> lane 0, 36 -> lane 1,
  // 25 -> lane 1 (36 < 49), which is full then; 16 -> lane 0.
  const Plan plan = plan_of("wlb", document_batches({{4, 5, 6, 7}}), shape(8, 4, 2));
  CHECK(ids_of(plan.steps[0]) == std::vector<Ids>{{3}, {0}, {2}, {1}});
}

TEST_CASE("wlb's thresholds follow the window and must rise") {
  PackOptions options = shape(128, 4);
  CHECK(wlb_thresholds(options).empty());
  options.of<WlbOptions>().queues = 1;
  CHECK(wlb_thresholds(options) == std::vector<std::int64_t>{64});
  options.of<WlbOptions>().queues = 2;
  CHECK(wlb_thresholds(options) == std::vector<std::int64_t>{64, 96});
  options.of<WlbOptions>().queues = 4;
  CHECK(wlb_thresholds(options) == std::vector<std::int64_t>{64, 80, 96, 112});
  options.of<WlbOptions>().thresholds = {50, 50};
  CHECK_THROWS_AS(wlb_thresholds(options), UserError);
}

TEST_CASE("a document above the limit is refused, dropped, truncated or split") {
  PackOptions options = shape(4, 2);
  const std::vector<GlobalBatch> batches = document_batches({{3, 10}});
  CHECK_THROWS_WITH_AS(plan_of("fixed-greedy", batches, options),
                       doctest::Contains("document 1: 10 tokens, policy fixed-greedy places at most 4"),
                       UserError);
  options.oversize = Oversize::drop;
  CHECK(plan_of("fixed-greedy", batches, options).dropped == std::vector<Slice>{{1, 0, 10}});
  options.oversize = Oversize::truncate;
  CHECK(plan_of("fixed-greedy", batches, options).dropped == std::vector<Slice>{{1, 4, 10}});
  // Split into 4, 4, 2, next to the 3: two bins of 4 take the two fours; 3 and 2 follow.
  options.oversize = Oversize::split;
  const Plan plan = plan_of("fixed-greedy", batches, options);
  CHECK(plan.dropped.empty());
  REQUIRE(plan.steps.size() == 2);
  CHECK(ids_of(plan.steps[1]) == std::vector<Ids>{{0}, {1}});
}

TEST_CASE("micro-batches of a lane can be put in descending or bell order") {
  // W of the windows 0..4: 4, 16, 9, 1, 25 (lengths 2, 4, 3, 1, 5). Descending: 4 1 2 0 3.
  // Bell: even positions reversed (3, 2, 4), then odd positions (1, 0).
  PackOptions options = shape(5, 5);
  std::vector<GlobalBatch> batches = document_batches({{2, 4, 3, 1, 5}});
  batches[0].window_begin = {0, 1, 2, 3, 4, 5};
  options.order = Order::descending;
  CHECK(ids_of(plan_of("plain", batches, options).steps[0]) == std::vector<Ids>{{4}, {1}, {2}, {0}, {3}});
  options.order = Order::bell;
  CHECK(ids_of(plan_of("plain", batches, options).steps[0]) == std::vector<Ids>{{3}, {2}, {4}, {1}, {0}});
}

TEST_CASE("workloads by hand") {
  const std::vector<std::int64_t> tokens{3};
  std::vector<double> work(1);
  QuadraticWorkload().of(tokens, work);
  CHECK(work[0] == 9);
  // 20 h^2 s + 4 h h_kv s + 4 h s^2 with h = 2, h_kv = 1, s = 3: 240 + 24 + 72.
  FlopsWorkload(2, 1).of(tokens, work);
  CHECK(work[0] == 336);
}

TEST_CASE("options that make no step are refused") {
  const std::vector<GlobalBatch> batches = document_batches({{1}});
  PackOptions options = shape(8, 2);
  options.lanes = 0;
  CHECK_THROWS_AS(plan_of("plain", batches, options), UserError);
  options = shape(8, 3);
  options.micro_batch_size = 2;
  CHECK_THROWS_WITH_AS(plan_of("wlb", batches, options), doctest::Contains("does not divide"), UserError);
  options = shape(8, 2);
  options.of<FixedLengthOptions>().pack_window = 0;
  CHECK_THROWS_AS(plan_of("fixed-greedy", batches, options), UserError);
  options.of<IsfOptions>().rounds = 0;
  CHECK_THROWS_AS(plan_of("isf", batches, options), UserError);
  options.of<PackLengthOptions>().pack_length = std::int64_t{1} << 40;
  CHECK_THROWS_AS(plan_of("ffd", batches, options), UserError);
  options.of<PackLengthOptions>().pack_length = std::int64_t{1} << 27;
  CHECK_THROWS_WITH_AS(plan_of("bfd", batches, options), doctest::Contains("take at most 67108864"),
                       UserError);
}
