// LongAlign's packing: next-fit in data order. LongAlign also weights the loss of each packed sequence, which
// does not change what a step computes. O(n).
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_next_fit(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  return pack_random(lengths, capacity, nullptr);
}

Plan plan_longalign_packing(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  return plan_of_packs(set.slices, pack_next_fit(set.lengths, pack_length(problem.options)), problem.options);
}

}  // namespace equipoise
