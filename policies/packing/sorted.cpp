// Sorted batching (LongAlign): the whole set sorted by length (shortest first, stable), cut into consecutive
// batches, the batches shuffled. Documents of a batch are alike, so padding is small; each micro-batch is
// padded as by `padded`. A batch has documents_per_step documents; with window batches, as many as make the
// loader's number of steps. The batch left short is marked as a tail. O(n).
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "policies/base/random.h"
#include "policies/length_order.h"
#include "policies/packing/packing.h"
#include "policies/packing/padded.h"
#include "policies/packs.h"

namespace equipoise {

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
