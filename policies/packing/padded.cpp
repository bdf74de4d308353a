// Padded batches (the DeepSpeed baseline of Skrull, "random batching" in HBP): one document a sequence,
// micro_batch_size of them in a micro-batch, all padded to its longest document. The padding is computed;
// `pr` counts it. Sequences are dealt to the lanes in turn, as windows are by plain. O(n).
#include "policies/packing/padded.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Step padded_step(std::span<const Slice> documents, const PackOptions& options) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(1, options.micro_batch_size));
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::vector<MicroBatch>& lane = step.lanes[i % lanes].micro_batches;
    if (i / lanes % size == 0) lane.emplace_back();
    MicroBatch& micro_batch = lane.back();
    micro_batch.slices.push_back(documents[i]);
    micro_batch.pad_each_to = std::max(micro_batch.pad_each_to, documents[i].tokens());
  }
  return step;
}

Plan plan_padded(const PackingProblem& problem) {
  Plan plan;
  plan.steps.reserve(problem.batches.size());
  for (const GlobalBatch& batch : problem.batches) {
    plan.steps.push_back(padded_step(batch.slices, problem.options));
  }
  return plan;
}

}  // namespace equipoise
