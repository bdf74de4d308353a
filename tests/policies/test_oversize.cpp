// Documents above a policy's hard limit.
#include <doctest/doctest.h>

#include <string>

#include "policies/loader.h"
#include "policies/packing/skrull.h"
#include "tests/policies/packing_cases.h"

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
  // 10 + 10 + 5 beside the 3.
  const Plan split = plan_of("isf", batches, limit_of_ten(Oversize::split));
  CHECK(split.dropped.empty());
  std::int64_t run = 0;
  for (const Step& step : split.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) run += tokens(m.slices);
  CHECK(run == 28);
}
