#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tests/traces/scratch.h"
#include "traces/trace.h"

using equipoise::mix_traces;
using equipoise::Trace;
using equipoise::WeightedTrace;
using equipoise::test::error_of;

namespace {

Trace constant(std::int64_t length, std::size_t count, const char* origin) {
  Trace trace;
  trace.lengths.assign(count, length);
  trace.origin = origin;
  return trace;
}

}  // namespace

TEST_CASE("a mixture keeps its weights in tokens, not in documents") {
  // Lengths 10 and 1000 at equal weights: 100 documents of 10 for each of 1000.
  const Trace short_ones = constant(10, 1000000, "short");
  const Trace long_ones = constant(1000, 100000, "long");
  const std::array<WeightedTrace, 2> sources = {{{&short_ones, 1}, {&long_ones, 1}}};
  const Trace mixed = mix_traces(sources, 500000, 7);
  REQUIRE(mixed.lengths.size() == 500000);
  std::int64_t short_tokens = 0;
  std::int64_t long_tokens = 0;
  for (const std::int64_t length : mixed.lengths) (length == 10 ? short_tokens : long_tokens) += length;
  // About 4950 long documents; their count has a standard error of 1.4 %, so 5 of them are 7 %.
  CHECK(static_cast<double>(long_tokens) / static_cast<double>(short_tokens) ==
        doctest::Approx(1).epsilon(0.07));
  CHECK(mixed.origin == "mixture of short + long (seed 7)");
}

TEST_CASE("every source keeps its own order and the mixture ends with the first source that runs out") {
  Trace odd;
  Trace even;
  for (std::int64_t i = 1; i <= 400; ++i) (i % 2 == 1 ? odd : even).lengths.push_back(i);
  const std::array<WeightedTrace, 2> sources = {{{&odd, 2}, {&even, 1}}};
  const Trace mixed = mix_traces(sources, 0, 3);
  std::vector<std::int64_t> seen_odd;
  std::vector<std::int64_t> seen_even;
  for (const std::int64_t length : mixed.lengths) (length % 2 == 1 ? seen_odd : seen_even).push_back(length);
  CHECK(seen_odd == odd.lengths);  // twice the weight: it runs out first
  CHECK(seen_even.size() < even.lengths.size());
  for (std::size_t i = 0; i < seen_even.size(); ++i) CHECK(seen_even[i] == even.lengths[i]);
  CHECK(mix_traces(sources, 0, 3).lengths == mixed.lengths);
  CHECK(mix_traces(sources, 0, 4).lengths != mixed.lengths);
}

TEST_CASE("weights that mean nothing are refused") {
  const Trace trace = constant(5, 10, "five");
  const Trace empty = constant(5, 0, "nothing");
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    const std::array<WeightedTrace, 1> sources = {{{&trace, weight}}};
    CHECK(error_of([&] { mix_traces(sources, 0, 0); }).find("expected a number > 0") != std::string::npos);
  }
  const std::array<WeightedTrace, 1> sources = {{{&empty, 1}}};
  CHECK(error_of([&] { mix_traces(sources, 0, 0); }).find("nothing: the trace is empty") == 0);
  CHECK(error_of([&] { mix_traces({}, 0, 0); }).find("at least one trace") != std::string::npos);
}
