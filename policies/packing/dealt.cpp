// Document i of a batch goes to micro-batch (i / run_length) mod N. Nothing is balanced. O(n).
#include "policies/packing/dealt.h"

#include "policies/packs.h"

namespace equipoise {

Plan plan_dealt(const PackingProblem& problem) {
  const auto bins = static_cast<std::size_t>(micro_batches_of_step(problem.options));
  const auto run = static_cast<std::size_t>(problem.options.of<DealtOptions>().run_length);
  Plan plan;
  for (const GlobalBatch& batch : problem.batches) {
    std::vector<std::vector<Slice>> dealt(bins);
    for (std::size_t i = 0; i < batch.slices.size(); ++i) dealt[i / run % bins].push_back(batch.slices[i]);
    plan.steps.push_back(step_of_bins(std::move(dealt), problem.options));
  }
  return plan;
}

}  // namespace equipoise
