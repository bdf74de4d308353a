// Longest processing time first (Graham 1969): documents of the step, largest cost W first (stable), each
// into the least loaded of N micro-batches. No capacity; at most 4/3 of the best possible maximum. O(n log
// n).
#include <cstddef>
#include <utility>
#include <vector>

#include "policies/least_loaded.h"
#include "policies/length_order.h"
#include "policies/packing/packing.h"
#include "policies/packs.h"
#include "policies/step_shape.h"

namespace equipoise {

Plan plan_lpt(const PackingProblem& problem) {
  const auto bins = static_cast<std::size_t>(micro_batches_of_step(problem.options));
  LeastLoaded<double> load(bins);
  Plan plan;
  plan.steps.reserve(problem.batches.size());
  for (const GlobalBatch& batch : problem.batches) {
    const std::vector<double> work = work_of(batch.slices, problem.workload);
    load.reset();
    std::vector<std::vector<Slice>> placed(bins);
    for (const std::uint32_t i : heaviest_first(work)) {
      const std::size_t bin = load.least();
      load.add(bin, work[i]);
      placed[bin].push_back(batch.slices[i]);
    }
    plan.steps.push_back(step_of_bins(std::move(placed), problem.options));
  }
  return plan;
}

}  // namespace equipoise
