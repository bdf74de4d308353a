// Best-fit decreasing: documents longest first (stable), each into the fullest pack that has room, ties to
// the oldest.
//
// Of a run of equal lengths L the pack found keeps getting copies while it has room: it was the fullest with
// room >= L, so with L less room it is the only candidate below its old place. One search for each
// (pack, length) pair: O(n + p log n), p <= n.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "policies/length_order.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/room_buckets.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_bfd(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = longest_first(lengths);
  const std::int64_t shortest = order.empty() ? 1 : lengths[order.back()];
  RoomBuckets buckets(capacity);
  std::vector<std::uint32_t> pack_of(order.size());
  std::uint32_t packs = 0;
  for (std::size_t i = 0; i < order.size();) {
    const std::int64_t length = lengths[order[i]];
    const std::optional<RoomBuckets::Found> found = buckets.take_fullest(length);
    const std::uint32_t pack = found ? found->pack : packs++;
    std::int64_t room = found ? found->room : capacity;
    for (; i < order.size() && lengths[order[i]] == length && room >= length; ++i, room -= length) {
      pack_of[i] = pack;
    }
    if (room >= shortest) buckets.put(pack, room);  // else nothing will ever fit
  }
  return gather_packs(order, pack_of, packs);
}

Plan plan_bfd(const PackingProblem& problem) {
  return plan_mixed(problem, [](const std::vector<std::int64_t>& lengths, std::int64_t capacity, Shuffler) {
    return pack_bfd(lengths, capacity);
  });
}

}  // namespace equipoise
