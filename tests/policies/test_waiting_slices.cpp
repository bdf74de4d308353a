// Slices of long documents in lanes that wait for each other: sequence-slices, and equipoise that starts from
// it.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "policies/make_plan.h"
#include "policies/packing/equipoise.h"
#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/packing/wlb.h"
#include "policies/plan_metrics.h"
#include "policies/steps.h"
#include "tests/policies/packing_cases.h"
#include "tests/policies/random_documents.h"

using namespace equipoise;

namespace {

// "index/count" of the chunk at each place of a lane.
std::vector<std::string> chunks_of(const Lane& lane) {
  std::vector<std::string> chunks;
  for (const MicroBatch& m : lane.micro_batches)
    chunks.push_back(std::to_string(m.chunk.index) + "/" + std::to_string(m.chunk.count));
  return chunks;
}

// Lanes that wait for each other order their ops alike: up to the shorter one's end, behind which
// micro-batches are whole.
void check_alike(const Step& step, std::size_t waiting) {
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    std::vector<std::string> first = chunks_of(step.lanes[l / waiting * waiting]);
    std::vector<std::string> own = chunks_of(step.lanes[l]);
    const std::size_t most = std::max(first.size(), own.size());
    first.resize(most, "0/1");
    own.resize(most, "0/1");
    CHECK(first == own);
  }
}

std::vector<Slice> cut_slices(const Step& step) {
  std::vector<Slice> slices;
  for (const Lane& lane : step.lanes)
    for (const MicroBatch& m : lane.micro_batches)
      if (m.chunk.count > 1) slices.insert(slices.end(), m.slices.begin(), m.slices.end());
  std::ranges::sort(slices, {}, [](const Slice& s) { return std::pair(s.document, s.begin); });
  return slices;
}

PackOptions random_waiting(SplitMix64& random) {
  PackOptions options;
  options.context_window = 256;
  options.waiting_lanes = 1 + static_cast<int>(random.next() % 3);
  options.lanes = options.waiting_lanes * (1 + static_cast<int>(random.next() % 2));
  options.sequences_per_step = std::int64_t{options.lanes} * 4;
  options.stages = 1 + static_cast<int>(random.next() % 4);
  options.verify = true;
  options.of<SequenceSlicesOptions>().slices = 2 + static_cast<std::int64_t>(random.next() % 7);
  return options;
}

}  // namespace

TEST_CASE("lanes that wait for each other have as many slices of a document at one place, by hand") {
  // W(t) = t^2, 4 slices of the longest, 16 tokens: T = 64, at most 8 tokens. 12 tokens would be 3 slices,
  // and are 4 in addition to the 16. Of the next row 10 tokens would be 2 slices, so 7 tokens, which fit
  // whole, are 2, too. What is left, 3 and 1 tokens, is one micro-batch, on the lane with less: 144 + 100
  // against 256 + 49.
  PackOptions options;
  options.lanes = options.waiting_lanes = options.stages = 2;
  options.verify = true;
  options.of<SequenceSlicesOptions>().slices = 4;
  const Step step = plan_of("sequence-slices", document_batches({{3, 16, 7, 12, 1, 10}}), options).steps[0];
  CHECK(chunks_of(step.lanes[0]) == std::vector<std::string>{"0/4", "1/4", "2/4", "3/4", "0/2", "1/2"});
  CHECK(chunks_of(step.lanes[1]) ==
        std::vector<std::string>{"0/4", "1/4", "2/4", "3/4", "0/2", "1/2", "0/1"});
  CHECK(step.lanes[0].micro_batches[4].slices[0].document == 2);
  CHECK(step.lanes[1].micro_batches[6].tokens() == 4);
  // A row without a document for each lane is not cut.
  const Step alone = plan_of("sequence-slices", document_batches({{16}}), options).steps[0];
  CHECK(chunks_of(alone.lanes[0]) == std::vector<std::string>{"0/1"});
  // Without a pipeline lanes may order their ops as they like.
  options.stages = 1;
  const Step any = plan_of("sequence-slices", document_batches({{16}}), options).steps[0];
  CHECK(chunks_of(any.lanes[0]).size() == 4);
}

TEST_CASE(
    "equipoise leaves slices as they are, lanes alike, and is no slower than its start by its own clock") {
  const QuadraticWorkload workload;
  int faster = 0, cut = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    SplitMix64 random(seed);
    PackOptions options = random_waiting(random);
    const DocumentSet set = load_documents(random_lengths(random, 200, 256), options, {});
    const PackingProblem problem{set.batches, options, workload};
    options.of<EquipoiseOptions>().start = Start::sequence_slices;
    options.of<EquipoiseOptions>().max_delay = seed % 2 == 0 ? 0 : 0.5;
    const Plan plan = make_plan(packing_policy("equipoise"), problem);  // checked by the validator
    const Plan start = plan_gathered(problem);
    REQUIRE(plan.steps.size() == start.steps.size());
    CHECK(plan_metrics(set.batches, plan).token_delay_mean.value() <=
          options.of<EquipoiseOptions>().max_delay);
    LaneShapes shapes(options.stages, 1);
    StepPacker packer(options, {max_tokens(options), 0, true, true}, workload, shapes);
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      CHECK(cut_slices(plan.steps[s]) == cut_slices(start.steps[s]));
      if (options.stages > 1) check_alike(plan.steps[s], static_cast<std::size_t>(options.waiting_lanes));
      CHECK(packer.seconds(plan.steps[s]) <= packer.seconds(start.steps[s]));
      faster += packer.seconds(plan.steps[s]) < packer.seconds(start.steps[s]) ? 1 : 0;
      cut += cut_slices(plan.steps[s]).empty() ? 0 : 1;
    }
  }
  CHECK(cut > 100);
  CHECK(faster > 100);
}
