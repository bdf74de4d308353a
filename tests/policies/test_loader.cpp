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

TEST_CASE("documents above max_length are cut once, for all policies alike") {
  // 5 7 9 with at most 6: 5 6 6, or 5 alone. 7 and 9 lose 1 + 3, or 7 + 9.
  PackOptions options = windows(4, 1);
  options.documents_per_step = 1;
  options.max_length = 6;
  const std::vector<std::int64_t> lengths{5, 7, 9};
  const DocumentSet cut = load_documents(lengths, options, {3, LoaderTail::carry, false});
  CHECK(cut.batches[1].slices == std::vector<Slice>{{1, 0, 6}});
  CHECK(cut.batches[2].slices == std::vector<Slice>{{2, 0, 6}});
  CHECK(cut.tokens == 17);
  CHECK(cut.cut_documents == 2);
  CHECK(cut.cut_tokens == 4);
  CHECK(cut_note(cut, options, "max_length") ==
        Note{"documents_truncated",
             "",
             {{"key", "max_length"}, {"max_length", 6}, {"documents", 2}, {"of", 3}, {"tokens", 4}}});
  options.longer = LongerThan::drop;
  CHECK(load_documents(lengths, options, {}).cut_tokens == 16);
  const DocumentSet repeated = load_documents(lengths, options, {2, LoaderTail::carry, true});
  CHECK(repeated.batches[1].slices == std::vector<Slice>{{3, 0, 5}});
  options.max_length = 4;  // nothing is left, however often the trace is read
  CHECK_THROWS_WITH_AS(load_documents(lengths, options, {2, LoaderTail::carry, true}),
                       doctest::Contains("too short"), UserError);
  // |0:0-4|0:4-5 1:0-3|: windows are cut from what is left of the documents.
  PackOptions of_windows = windows(4, 1);
  of_windows.max_length = 5;
  const DocumentSet set = load_documents(lengths, of_windows, {});
  CHECK(set.batches[1].slices == std::vector<Slice>{{0, 4, 5}, {1, 0, 3}});
  CHECK(set.tokens == 15);
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
