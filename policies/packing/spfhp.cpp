// Shortest-pack-first histogram packing (Krell et al., arXiv 2107.02027; the SPFHP row of HBP's tables):
// counts of equal lengths, longest length first, each copy into the pack with the most room (the "shortest"
// pack), ties to the oldest. When that has no room, all remaining copies of this length open packs of their
// own, even where two of them would fit into one.
//
// Of the copies of one length the lowest document comes first; the original works on counts alone and leaves
// this open. It also limits documents a pack (an option there, off here). O(n log packs).
#include <cstddef>
#include <optional>
#include <vector>

#include "policies/length_order.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/room_buckets.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_spfhp(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = longest_first(lengths);
  RoomBuckets buckets(capacity);
  std::vector<std::uint32_t> pack_of(order.size());
  std::uint32_t packs = 0;
  bool opening = false;  // the rest of this length opens packs
  std::size_t first_opened = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t length = lengths[order[i]];
    if (!opening) {
      const std::optional<RoomBuckets::Found> found = buckets.take_emptiest(length);
      if (found) {
        pack_of[i] = found->pack;
        if (found->room > length) buckets.put(found->pack, found->room - length);
        continue;
      }
      opening = true;
      first_opened = packs;
    }
    pack_of[i] = packs++;
    if (i + 1 == order.size() || lengths[order[i + 1]] != length) {
      for (std::size_t p = first_opened; p < packs && length < capacity; ++p) {
        buckets.put(static_cast<std::uint32_t>(p), capacity - length);
      }
      opening = false;
    }
  }
  return gather_packs(order, pack_of, packs);
}

Plan plan_spfhp(const PackingProblem& problem) {
  return plan_mixed(problem, [](const std::vector<std::int64_t>& lengths, std::int64_t capacity, Shuffler) {
    return pack_spfhp(lengths, capacity);
  });
}

}  // namespace equipoise
