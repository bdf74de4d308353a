// Best-fit shuffled: documents in shuffled order, each into the fullest pack that has room, ties to the
// oldest. O(n log packs).
#include <cstddef>
#include <numeric>
#include <optional>
#include <vector>

#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/room_buckets.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_bfs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  if (random != nullptr) shuffle(order, *random);
  RoomBuckets buckets(capacity);
  std::vector<std::uint32_t> pack_of(order.size());
  std::uint32_t packs = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t length = lengths[order[i]];
    const std::optional<RoomBuckets::Found> found = buckets.take_fullest(length);
    const std::uint32_t pack = found ? found->pack : packs++;
    const std::int64_t room = (found ? found->room : capacity) - length;
    pack_of[i] = pack;
    if (room > 0) buckets.put(pack, room);
  }
  return gather_packs(order, pack_of, packs);
}

Plan plan_bfs(const PackingProblem& problem) {
  return plan_mixed(problem, pack_bfs);
}

}  // namespace equipoise
