// Packers that look for a pack with room: the oldest (first fit), the fullest (best fit) or the emptiest
// (spfhp).
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/least_loaded.h"
#include "policies/packing/pack_length.h"
#include "policies/steps.h"

namespace equipoise {

// The first-fit packers of HBP put documents longest first (ffd) or in shuffled order (ffs) into the oldest
// pack with room.

namespace {

// Finds the lowest-numbered pack with room for t tokens in O(log packs). A binary tree over the packs holds
// the largest room below each node. Unopened packs count with all their room, so opening one is no special
// case. Any-fit packing leaves at most one pack half empty or emptier, hence at most 2 * tokens / capacity +
// 1 packs, which bounds the tree.
class FirstFitTree {
 public:
  FirstFitTree(std::int64_t capacity, std::int64_t tokens, std::size_t documents)
      : leaves_(std::bit_ceil(std::min(documents, static_cast<std::size_t>(2 * tokens / capacity)) + 1)),
        room_(2 * leaves_, static_cast<std::uint32_t>(capacity)) {}

  // The lowest pack with room for `tokens` <= capacity.
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

// First-fit decreasing puts documents, longest first (stable), into the oldest pack with room.
//
// Equal lengths are consecutive, and the first pack with room for the next of them is never older than the
// previous one. So a run of equal lengths fills pack after pack, with one search per pack instead of one per
// document. O(n + p log p) for p (pack, length) pairs, p <= n.
Packs pack_ffd(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = longest_first(lengths);
  const std::int64_t tokens = sum_of(lengths);
  FirstFitTree tree(capacity, tokens, lengths.size());
  std::vector<std::uint32_t> pack_of(order.size());
  std::size_t packs = 0;
  for (std::size_t i = 0; i < order.size();) {
    const std::int64_t length = lengths[order[i]];
    const std::size_t pack = tree.first(length);
    packs = std::max(packs, pack + 1);
    std::int64_t room = tree.room(pack);
    const std::int64_t before = room;
    for (; i < order.size() && lengths[order[i]] == length && room >= length; ++i, room -= length)
      pack_of[i] = static_cast<std::uint32_t>(pack);
    tree.take(pack, before - room);
  }
  return gather_packs(order, pack_of, packs);
}

// First-fit shuffled puts documents in shuffled order into the oldest pack with room. O(n log packs).
Packs pack_ffs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  const std::vector<std::uint32_t> order = shuffled_order(lengths.size(), random);
  const std::int64_t tokens = sum_of(lengths);
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

// Packers that choose a pack by its room: the fullest that a document fits (best fit: bfd, bfs), or the
// emptiest (spfhp).

namespace {

// A set of numbers in 0 .. size - 1.
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
    for (std::size_t l = levels_.size(); l-- > 0;)
      value = value * 64 + 63 - static_cast<std::size_t>(std::countl_zero(levels_[l][value]));
    return value;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;  // levels_[0] has one bit per number
};

// Packs by their room: finds the fullest that fits (best fit) or the emptiest (worst fit), ties to the
// oldest. There is one bucket for each amount of room, a bitmap tree over the non-empty buckets, and in each
// bucket a skew heap by pack number whose links are in two flat arrays. Finding a bucket takes O(log64
// capacity), putting and taking amortised O(log packs). Only the arrays are allocated.
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

  // Takes the oldest of the packs with the least room >= tokens out of its bucket.
  std::optional<Found> take_fullest(std::int64_t tokens) {
    return take(used_.at_least(static_cast<std::size_t>(tokens)));
  }

  // Takes the oldest of the packs with the most room out of its bucket, if that room is >= tokens.
  std::optional<Found> take_emptiest(std::int64_t tokens) {
    const std::optional<std::size_t> room = used_.largest();
    if (!room || *room < static_cast<std::size_t>(tokens)) return std::nullopt;
    return take(room);
  }

  // Packs may be put in any order. Their numbers are dense.
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
      throw UserError("pack_length: best-fit and histogram packers take at most ", kMostRoom, ", found ",
                      capacity);
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

  // Top-down skew merge along the right spines, which swaps the children of every visited node.
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

}  // namespace

// Best-fit decreasing puts documents, longest first (stable), into the fullest pack with room, ties to the
// oldest.
//
// In a run of equal lengths L, the pack found gets copies while it has room: it was the fullest with room >=
// L, so with L less room no other candidate is fuller. This takes one search per (pack, length) pair: O(n + p
// log n), p <= n.
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
    for (; i < order.size() && lengths[order[i]] == length && room >= length; ++i, room -= length)
      pack_of[i] = pack;
    if (room >= shortest) buckets.put(pack, room);  // else no document will ever fit
  }
  return gather_packs(order, pack_of, packs);
}

// Best-fit shuffled puts documents in shuffled order into the fullest pack with room, ties to the oldest. O(n
// log packs).
Packs pack_bfs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  const std::vector<std::uint32_t> order = shuffled_order(lengths.size(), random);
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

// Shortest-pack-first histogram packing (Krell et al., arXiv 2107.02027; the SPFHP row of HBP's tables):
// takes counts of equal lengths, longest length first, and puts each copy into the pack with the most room
// (the "shortest" pack), ties to the oldest. When that has no room, all remaining copies of this length open
// packs of their own, even where two of them would fit into one.
//
// Documents of equal lengths come in their order; the original works only on counts and leaves this open.
// It also has an option that limits documents per pack, which this lacks. O(n log packs).
Packs pack_spfhp(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  const std::vector<std::uint32_t> order = longest_first(lengths);
  RoomBuckets buckets(capacity);
  std::vector<std::uint32_t> pack_of(order.size());
  std::uint32_t packs = 0;
  bool opening = false;  // whether the remaining copies of this length open packs
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
      for (std::size_t p = first_opened; p < packs && length < capacity; ++p)
        buckets.put(static_cast<std::uint32_t>(p), capacity - length);
      opening = false;
    }
  }
  return gather_packs(order, pack_of, packs);
}

}  // namespace equipoise
