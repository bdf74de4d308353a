// Padded batches (the DeepSpeed baseline of Skrull, "random batching" in HBP): one document a sequence,
// micro_batch_size of them in a micro-batch, all padded to its longest document. The padding is computed;
// `pr` counts it. Sequences are dealt to the lanes in turn, as windows are by plain. O(n).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/random.h"
#include "policies/least_loaded.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

// Whether a micro-batch has no room for another document: micro_batch_size of them, or a token budget, which
// what is padded counts against.
bool is_full(const MicroBatch& micro_batch, const Slice& next, const PackOptions& options) {
  const std::int64_t budget = options.of<TokenBudget>().tokens_per_micro_batch;
  const auto held = static_cast<std::int64_t>(micro_batch.slices.size());
  if (budget == 0) return held >= std::max<std::int64_t>(1, options.micro_batch_size);
  if (!options.of<PaddedOptions>().padding) return micro_batch.tokens() + next.tokens() > budget;
  return (held + 1) * std::max(micro_batch.pad_each_to, next.tokens()) > budget;
}

// One document a sequence: sequence i goes to lane i mod lanes; consecutive sequences of a lane are a
// micro-batch, each padded to its longest unless `padding` is off.
Step padded_step(std::span<const Slice> documents, const PackOptions& options) {
  const bool padding = options.of<PaddedOptions>().padding;
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::vector<MicroBatch>& lane = step.lanes[i % lanes].micro_batches;
    if (lane.empty() || is_full(lane.back(), documents[i], options)) lane.emplace_back();
    MicroBatch& micro_batch = lane.back();
    micro_batch.slices.push_back(documents[i]);
    if (padding) micro_batch.pad_each_to = std::max(micro_batch.pad_each_to, documents[i].tokens());
  }
  return step;
}

}  // namespace

Plan plan_padded(const PackingProblem& problem) {
  Plan plan;
  plan.steps.reserve(problem.batches.size());
  for (const GlobalBatch& batch : problem.batches) {
    plan.steps.push_back(padded_step(batch.slices, problem.options));
  }
  return plan;
}

// Sorted batching (LongAlign): the whole set sorted by length (shortest first, stable), cut into consecutive
// batches, the batches shuffled. Documents of a batch are alike, so padding is small; each micro-batch is
// padded as by `padded`. A batch has documents_per_step documents; with window batches, as many as make the
// loader's number of steps. The batch left short is marked as a tail. O(n).
Plan plan_sorted(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  const SliceList set = whole_set(problem);
  std::vector<Slice> sorted;
  sorted.reserve(set.slices.size());
  for (const std::uint32_t i : shortest_first(set.lengths)) sorted.push_back(set.slices[i]);

  const std::size_t steps = std::max<std::size_t>(1, problem.batches.size());
  const std::size_t size = options.documents_per_step > 0
                               ? static_cast<std::size_t>(options.documents_per_step)
                               : std::max<std::size_t>(1, (sorted.size() + steps - 1) / steps);
  std::vector<std::size_t> begins;
  for (std::size_t begin = 0; begin < sorted.size(); begin += size) begins.push_back(begin);
  if (options.shuffle) {
    SplitMix64 random(options.seed);
    shuffle(begins, random);
  }
  Plan plan;
  plan.steps.reserve(begins.size());
  for (const std::size_t begin : begins) {
    const std::size_t count = std::min(size, sorted.size() - begin);
    plan.steps.push_back(padded_step(std::span(sorted).subspan(begin, count), options));
    plan.steps.back().tail = count < size;
  }
  return plan;
}

}  // namespace equipoise
