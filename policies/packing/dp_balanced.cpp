// DP-balanced packing (Megatron-Core's sequence-packing scheduler): next-fit in arrival order, then the
// number of packs is raised to a multiple of the lanes, so that every data-parallel rank gets as many. The
// last pack gives up its last document, again and again while it has more than one, then the pack before it;
// each becomes a pack of its own at the end. O(n).
//
// Megatron packs one global batch at a time and fails when there is nothing left to move; here the set is
// packed at once, as by the other packers of one length, and the last step is left uneven then.
#include <cstddef>
#include <vector>

#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_dp_balanced(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes) {
  const Packs packed = pack_next_fit(lengths, capacity);
  std::size_t wanted = (lanes - packed.size() % lanes) % lanes;
  std::vector<std::size_t> kept(packed.size());
  for (std::size_t p = 0; p < packed.size(); ++p) kept[p] = packed.of(p).size();
  std::vector<std::uint32_t> moved;
  for (std::size_t p = packed.size(); p-- > 0 && wanted > 0;) {
    for (; wanted > 0 && kept[p] > 1; --wanted) moved.push_back(packed.of(p)[--kept[p]]);
  }
  Packs packs;
  packs.item.reserve(lengths.size());
  for (std::size_t p = 0; p < packed.size(); ++p) {
    const std::span<const std::uint32_t> items = packed.of(p).first(kept[p]);
    packs.item.insert(packs.item.end(), items.begin(), items.end());
    packs.close();
  }
  for (const std::uint32_t item : moved) {
    packs.item.push_back(item);
    packs.close();
  }
  return packs;
}

Plan plan_dp_balanced(const PackingProblem& problem) {
  return plan_for_lanes(problem, pack_dp_balanced);
}

}  // namespace equipoise
