// First-fit decreasing: documents longest first (stable), each into the oldest pack that has room.
//
// Equal lengths come one after the other, and the first pack with room for one more of them is never an older
// one than before: so a run of equal lengths fills pack after pack, with one search for each pack and not one
// for each document. O(n + p log p) for p (pack, length) pairs, p <= n.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "policies/first_fit_tree.h"
#include "policies/length_order.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_ffd(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = longest_first(lengths);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  FirstFitTree tree(capacity, tokens, lengths.size());
  std::vector<std::uint32_t> pack_of(order.size());
  std::size_t packs = 0;
  for (std::size_t i = 0; i < order.size();) {
    const std::int64_t length = lengths[order[i]];
    const std::size_t pack = tree.first(length);
    packs = std::max(packs, pack + 1);
    std::int64_t room = tree.room(pack);
    const std::int64_t before = room;
    for (; i < order.size() && lengths[order[i]] == length && room >= length; ++i, room -= length) {
      pack_of[i] = static_cast<std::uint32_t>(pack);
    }
    tree.take(pack, before - room);
  }
  return gather_packs(order, pack_of, packs);
}

Plan plan_ffd(const PackingProblem& problem) {
  return plan_mixed(problem, [](const std::vector<std::int64_t>& lengths, std::int64_t capacity, Shuffler) {
    return pack_ffd(lengths, capacity);
  });
}

}  // namespace equipoise
