#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "policies/loader.h"
#include "tests/policies/packing_cases.h"

using namespace equipoise;

namespace {

PackOptions windows(std::int64_t window, std::int64_t sequences) {
  PackOptions options;
  options.context_window = window;
  options.sequences_per_step = sequences;
  return options;
}

}  // namespace

TEST_CASE("window batches cut the concatenated trace and carry the rest of a cut document") {
  // 5 + 7 + 4 + 4 = 20 tokens, windows of 4, two a batch: |0:0-4|0:4-5 1:0-3| |1:3-7|2:0-4| |3:0-4|
  const std::vector<std::int64_t> lengths{5, 7, 4, 4};
  const DocumentSet set = load_documents(lengths, windows(4, 2), {});
  REQUIRE(set.batches.size() == 3);
  CHECK(set.batches[0].slices == std::vector<Slice>{{0, 0, 4}, {0, 4, 5}, {1, 0, 3}});
  CHECK(set.batches[0].window_begin == std::vector<std::size_t>{0, 1, 3});
  CHECK(set.batches[1].slices == std::vector<Slice>{{1, 3, 7}, {2, 0, 4}});
  CHECK(set.batches[2].slices == std::vector<Slice>{{3, 0, 4}});  // a short last batch
  CHECK(set.batches[2].window_begin == std::vector<std::size_t>{0, 1});
  CHECK(set.tokens == 20);
  CHECK(set.dropped_tokens == 0);
  CHECK(set.documents == 4);
}

TEST_CASE("loader drop throws the rest of a cut document away") {
  // |0:0-4| (1 token dropped) |1:0-4| (3 dropped) |2:0-4| |3:0-4|
  const std::vector<std::int64_t> lengths{5, 7, 4, 4};
  const DocumentSet set = load_documents(lengths, windows(4, 2), {2, LoaderTail::drop, false});
  REQUIRE(set.batches.size() == 2);
  CHECK(set.batches[0].slices == std::vector<Slice>{{0, 0, 4}, {1, 0, 4}});
  CHECK(set.batches[1].slices == std::vector<Slice>{{2, 0, 4}, {3, 0, 4}});
  CHECK(set.dropped_tokens == 4);
}

TEST_CASE("a trace that is too short is refused unless it may be repeated, then ids continue") {
  const std::vector<std::int64_t> lengths{5, 7};
  CHECK_THROWS_WITH_AS(load_documents(lengths, windows(4, 2), {2, LoaderTail::carry, false}),
                       doctest::Contains("holds 1 full global batches"), UserError);
  const DocumentSet set = load_documents(lengths, windows(4, 2), {2, LoaderTail::carry, true});
  // 5 7 5 ...: |0:0-4|0:4-5 1:0-3| |1:3-7|2:0-4|
  CHECK(set.batches[1].slices == std::vector<Slice>{{1, 3, 7}, {2, 0, 4}});
  CHECK(set.documents == 3);
}

TEST_CASE("document batches hold whole documents in arrival order") {
  PackOptions options = windows(4, 2);
  options.documents_per_step = 2;
  const std::vector<std::int64_t> lengths{5, 7, 9};
  const DocumentSet set = load_documents(lengths, options, {});
  REQUIRE(set.batches.size() == 2);
  CHECK(set.batches[0].slices == std::vector<Slice>{{0, 0, 5}, {1, 0, 7}});
  CHECK(set.batches[1].slices == std::vector<Slice>{{2, 0, 9}});
  CHECK(set.batches[0].window_begin.empty());
  CHECK_THROWS_AS(load_documents(lengths, options, {2, LoaderTail::carry, false}), UserError);
}

TEST_CASE("bad traces and shapes are refused") {
  CHECK_THROWS_AS(load_documents({}, windows(4, 2), {}), UserError);
  const std::vector<std::int64_t> zero{3, 0};
  CHECK_THROWS_WITH_AS(load_documents(zero, windows(4, 2), {}), doctest::Contains("document 1 has length 0"),
                       UserError);
  const std::vector<std::int64_t> good{3};
  CHECK_THROWS_AS(load_documents(good, windows(0, 2), {}), UserError);
}

TEST_CASE("an unknown policy is answered with the nearest name") {
  CHECK_THROWS_WITH_AS(packing_policy("wbl"), doctest::Contains("did you mean \"wlb\""), UserError);
  CHECK_THROWS_WITH_AS(packing_policy("fixed"), doctest::Contains("did you mean \"fixed-greedy\""),
                       UserError);
  CHECK_THROWS_WITH_AS(packing_policy("zzzzzz"), doctest::Contains("(known: plain"), UserError);
}
