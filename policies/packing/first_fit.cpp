// First-fit packers of HBP: documents longest first (ffd) or in shuffled order (ffs), each into the oldest
// pack that has room.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "policies/least_loaded.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

// First fit: the lowest-numbered pack with room for t tokens, in O(log packs). A binary tree over the packs
// holds the largest room below each node; packs not opened yet count with all their room, so opening one is
// no special case. Any-fit packing leaves at most one pack half empty or emptier, hence at most
// 2 * tokens / capacity + 1 packs, which bounds the tree.
class FirstFitTree {
 public:
  FirstFitTree(std::int64_t capacity, std::int64_t tokens, std::size_t documents)
      : leaves_(std::bit_ceil(std::min(documents, static_cast<std::size_t>(2 * tokens / capacity)) + 1)),
        room_(2 * leaves_, static_cast<std::uint32_t>(capacity)) {}

  // Lowest pack with room for `tokens` <= capacity.
  [[nodiscard]] std::size_t first(std::int64_t tokens) const {
    const auto wanted = static_cast<std::uint32_t>(tokens);
    std::size_t node = 1;
    while (node < leaves_) {
      node *= 2;
      node += room_[node] < wanted ? 1 : 0;
    }
    return node - leaves_;
  }

  [[nodiscard]] std::int64_t room(std::size_t pack) const { return room_[leaves_ + pack]; }

  void take(std::size_t pack, std::int64_t tokens) {
    std::size_t node = leaves_ + pack;
    room_[node] -= static_cast<std::uint32_t>(tokens);
    for (node /= 2; node >= 1; node /= 2) {
      const std::uint32_t largest = std::max(room_[2 * node], room_[2 * node + 1]);
      if (room_[node] == largest) return;
      room_[node] = largest;
    }
  }

 private:
  std::size_t leaves_;
  std::vector<std::uint32_t> room_;  // room_[1] is the root, room_[leaves_ + p] pack p
};

}  // namespace

// First-fit decreasing: documents longest first (stable), each into the oldest pack that has room.
//
// Equal lengths come one after the other, and the first pack with room for one more of them is never an older
// one than before: so a run of equal lengths fills pack after pack, with one search for each pack and not one
// for each document. O(n + p log p) for p (pack, length) pairs, p <= n.
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

// First-fit shuffled: documents in shuffled order, each into the oldest pack that has room. O(n log packs).
Packs pack_ffs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  const std::vector<std::uint32_t> order = shuffled_order(lengths.size(), random);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  FirstFitTree tree(capacity, tokens, lengths.size());
  std::vector<std::uint32_t> pack_of(order.size());
  std::size_t packs = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t length = lengths[order[i]];
    const std::size_t pack = tree.first(length);
    tree.take(pack, length);
    pack_of[i] = static_cast<std::uint32_t>(pack);
    packs = std::max(packs, pack + 1);
  }
  return gather_packs(order, pack_of, packs);
}

}  // namespace equipoise
