// Which of k bins carries the least, kept under additions: a winner tree. The ties rule of every balancer
// here (lowest index) is the tree's own: a left child holds lower bins than its brother and wins when equal.
// least() O(1), add() O(log k); no allocation after construction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace equipoise {

template <class Load>
class LeastLoaded {
 public:
  explicit LeastLoaded(std::size_t bins)
      : bins_(bins), leaves_(std::bit_ceil(bins)), load_(leaves_), winner_(2 * leaves_) {
    for (std::size_t i = 0; i < leaves_; ++i) winner_[leaves_ + i] = static_cast<std::uint32_t>(i);
    reset();
  }

  // All bins empty again.
  void reset() {
    for (std::size_t i = 0; i < leaves_; ++i)
      load_[i] = i < bins_ ? Load{} : std::numeric_limits<Load>::max();
    for (std::size_t node = leaves_; node-- > 1;) play(node);
  }

  [[nodiscard]] std::size_t least() const { return winner_[1]; }
  [[nodiscard]] Load load(std::size_t bin) const { return load_[bin]; }

  void add(std::size_t bin, Load amount) { set(bin, load_[bin] + amount); }

  // A closed bin is never the least again (unless all are closed).
  void close(std::size_t bin) { set(bin, std::numeric_limits<Load>::max()); }

 private:
  void set(std::size_t bin, Load value) {
    load_[bin] = value;
    for (std::size_t node = (leaves_ + bin) / 2; node >= 1; node /= 2) play(node);
  }

  void play(std::size_t node) {
    const std::uint32_t left = winner_[2 * node];
    const std::uint32_t right = winner_[2 * node + 1];
    winner_[node] = load_[right] < load_[left] ? right : left;
  }

  std::size_t bins_;
  std::size_t leaves_;
  std::vector<Load> load_;
  std::vector<std::uint32_t> winner_;  // winner_[1] is the root, winner_[leaves_ + i] leaf i
};

}  // namespace equipoise
