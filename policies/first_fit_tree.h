// First fit: the lowest-numbered pack with room for t tokens, in O(log packs). A binary tree over the packs
// holds the largest room below each node; packs not opened yet count with all their room, so opening one is
// no special case. Any-fit packing leaves at most one pack half empty or emptier, hence at most
// 2 * tokens / capacity + 1 packs, which bounds the tree.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace equipoise {

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

}  // namespace equipoise
