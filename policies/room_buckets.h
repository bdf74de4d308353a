// Packs by the room they have left: the fullest that fits (best fit) or the emptiest (worst fit), ties to the
// oldest. One bucket for each amount of room, a bitmap tree over the buckets that are not empty, and in each
// bucket a skew heap by pack number whose links live in two flat arrays. Finding a bucket O(log64 capacity),
// putting and taking amortised O(log packs); no allocation besides the arrays.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {

// Which of the numbers 0 .. size - 1 are in the set.
class BitmapTree {
 public:
  explicit BitmapTree(std::size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }

  void insert(std::size_t value) {
    for (std::vector<std::uint64_t>& level : levels_) {
      level[value / 64] |= std::uint64_t{1} << (value % 64);
      value /= 64;
    }
  }

  void erase(std::size_t value) {
    for (std::vector<std::uint64_t>& level : levels_) {
      level[value / 64] &= ~(std::uint64_t{1} << (value % 64));
      if (level[value / 64] != 0) return;
      value /= 64;
    }
  }

  [[nodiscard]] std::optional<std::size_t> at_least(std::size_t value) const {
    for (std::size_t l = 0; l < levels_.size(); ++l) {
      if (value / 64 >= levels_[l].size()) return std::nullopt;
      const std::uint64_t above = levels_[l][value / 64] >> (value % 64);
      if (above != 0) {
        value += static_cast<std::size_t>(std::countr_zero(above));
        while (l-- > 0) value = value * 64 + static_cast<std::size_t>(std::countr_zero(levels_[l][value]));
        return value;
      }
      value = value / 64 + 1;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::size_t> largest() const {
    if (levels_.back()[0] == 0) return std::nullopt;
    std::size_t value = 0;
    for (std::size_t l = levels_.size(); l-- > 0;) {
      value = value * 64 + 63 - static_cast<std::size_t>(std::countl_zero(levels_[l][value]));
    }
    return value;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // levels_[0] has one bit a number
};

class RoomBuckets {
 public:
  static constexpr std::int64_t kMostRoom = std::int64_t{1} << 26;

  explicit RoomBuckets(std::int64_t capacity) : used_(checked(capacity)) {
    root_.assign(static_cast<std::size_t>(capacity) + 1, kNone);
  }

  struct Found {
    std::uint32_t pack;
    std::int64_t room;
  };

  // The oldest of the packs with the least room that is still >= tokens; it leaves its bucket.
  std::optional<Found> take_fullest(std::int64_t tokens) {
    return take(used_.at_least(static_cast<std::size_t>(tokens)));
  }

  // The oldest of the packs with the most room, if that is >= tokens; it leaves its bucket.
  std::optional<Found> take_emptiest(std::int64_t tokens) {
    const std::optional<std::size_t> room = used_.largest();
    if (!room || *room < static_cast<std::size_t>(tokens)) return std::nullopt;
    return take(room);
  }

  // Packs may be put in any order; numbers are dense.
  void put(std::uint32_t pack, std::int64_t room) {
    if (pack >= left_.size()) {
      left_.resize(pack + 1, kNone);
      right_.resize(pack + 1, kNone);
    }
    left_[pack] = right_[pack] = kNone;
    std::uint32_t& root = root_[at(room)];
    if (root == kNone) used_.insert(static_cast<std::size_t>(room));
    root = merge(root, pack);
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  static std::size_t checked(std::int64_t capacity) {
    if (capacity > kMostRoom) {
      throw UserError("pack_length: best-fit and histogram packers take at most " +
                      std::to_string(kMostRoom) + ", found " + std::to_string(capacity));
    }
    return static_cast<std::size_t>(capacity) + 1;
  }

  std::optional<Found> take(std::optional<std::size_t> room) {
    if (!room) return std::nullopt;
    std::uint32_t& root = root_[*room];
    const std::uint32_t pack = root;
    root = merge(left_[pack], right_[pack]);
    if (root == kNone) used_.erase(*room);
    return Found{pack, static_cast<std::int64_t>(*room)};
  }

  // Top-down skew merge: along the right spines, swapping the children of every node passed.
  std::uint32_t merge(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result = kNone;
    std::uint32_t* hole = &result;
    while (a != kNone && b != kNone) {
      if (b < a) std::swap(a, b);
      *hole = a;
      const std::uint32_t rest = right_[a];
      right_[a] = left_[a];
      hole = &left_[a];
      a = rest;
    }
    *hole = a == kNone ? b : a;
    return result;
  }

  BitmapTree used_;
  std::vector<std::uint32_t> root_;  // per amount of room
  std::vector<std::uint32_t> left_;  // per pack
  std::vector<std::uint32_t> right_;
};

}  // namespace equipoise
