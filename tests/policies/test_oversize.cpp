// Documents above a policy's hard limit.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "policies/loader.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/skrull.h"
#include "policies/packing/wlb.h"
#include "policies/steps.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

PackOptions limit_of_ten(Oversize oversize) {
  PackOptions options;
  options.context_window = 10;
  options.sequences_per_step = 1;
  options.oversize = oversize;
  options.verify = true;
  return options;
}

std::int64_t tokens(const std::vector<Slice>& slices) {
  std::int64_t sum = 0;
  for (const Slice& s : slices) sum += s.tokens();
  return sum;
}

}  // namespace

TEST_CASE("a document that a policy cannot place is told with its length and the limit") {
  // isf packs to the window of 10 tokens; document 1 has 12.
  try {
    plan_of("isf", document_batches({{3, 12}}), limit_of_ten(Oversize::error));
    FAIL("document 1 was placed");
  } catch (const UnplaceableDocument& e) {
    CHECK(e.document() == 1);
    CHECK(e.tokens() == 12);
    CHECK(e.limit() == 10);
    CHECK(std::string(e.in("study.json").what()).rfind("study.json: document 1: 12 tokens", 0) == 0);
  }
  // Two ranks of 5 tokens hold fewer than 10 together.
  PackOptions skrull = limit_of_ten(Oversize::error);
  skrull.context = 2;
  skrull.bucket_size = 5;
  CHECK_THROWS_AS(plan_of("skrull", document_batches({{3, 10}}), skrull), UnplaceableDocument);
}

TEST_CASE("what is dropped or cut off is listed, what is split runs") {
  const std::vector<GlobalBatch> batches = document_batches({{3, 25}});
  const Plan dropped = plan_of("isf", batches, limit_of_ten(Oversize::drop));
  CHECK(dropped.dropped == std::vector<Slice>{{1, 0, 25}});
  const Plan truncated = plan_of("isf", batches, limit_of_ten(Oversize::truncate));
  CHECK(truncated.dropped == std::vector<Slice>{{1, 10, 25}});
  // 10 + 10 + 5, and the 3.
  const Plan split = plan_of("isf", batches, limit_of_ten(Oversize::split));
  CHECK(split.dropped.empty());
  std::int64_t run = 0;
  for (const Step& step : split.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) run += tokens(m.slices);
  CHECK(run == 28);
}

TEST_CASE("packing what is carried ends for every limit, with and without a search") {
  // Every policy alone, as searches call it, either places all documents or names one above its limit. With
  // oversize it always ends, and then the search has priced a plan.
  const QuadraticWorkload quadratic;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    std::vector<std::vector<std::int64_t>> lengths(static_cast<std::size_t>(1 + below(random, 6)));
    std::int64_t longest = 0;
    for (auto& batch : lengths) {
      batch = random_lengths(random, below(random, 20), 40);
      for (const std::int64_t length : batch) longest = std::max(longest, length);
    }
    const std::vector<GlobalBatch> batches = document_batches(lengths);
    PackOptions options;
    options.context_window = 8 + below(random, 40);
    options.micro_batches = 1 + below(random, 6);
    options.lanes = 1 + static_cast<int>(below(random, 3));
    options.max_tokens = 1 + below(random, 48);
    options.of<WlbOptions>().queues = static_cast<int>(below(random, 4));
    const PackingProblem problem{batches, options, quadratic};
    if (longest > options.max_tokens)
      CHECK_THROWS_AS(plan_wlb(problem), UnplaceableDocument);
    else
      CHECK_NOTHROW(plan_wlb(problem));
    if (longest > micro_batch_capacity(options))
      CHECK_THROWS_AS(plan_fixed_greedy(problem), UnplaceableDocument);
    else
      CHECK_NOTHROW(plan_fixed_greedy(problem));

    int priced = 0;
    const auto price = [&](const Plan& plan) {
      ++priced;
      return static_cast<double>(plan.steps.size());
    };
    if (longest > options.max_tokens)
      CHECK_THROWS_AS(search_wlb_thresholds(problem, price), UnplaceableDocument);
    for (const Oversize oversize : {Oversize::drop, Oversize::truncate, Oversize::split}) {
      options.oversize = oversize;
      priced = 0;
      search_wlb_thresholds(problem, price, 1e9);
      CHECK(priced > 0);
    }
  }
}
