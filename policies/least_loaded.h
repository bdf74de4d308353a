// The two parts of most packers: documents ordered by length or weight, and the bin with the least load.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace equipoise {

// Stable orders by document length use a radix sort with digits of up to 11 bits. It takes O(n) time for
// lengths below 2^32, with at most three passes and fewer for short documents.
//
// Indices of `lengths`, longest first. Equal lengths keep their order. Lengths are below 2^32.
std::vector<std::uint32_t> longest_first(std::span<const std::int64_t> lengths);

// Indices of `lengths`, shortest first. Equal lengths keep their order.
std::vector<std::uint32_t> shortest_first(std::span<const std::int64_t> lengths);

// Indices of `weights`, largest first; equal weights keep their order. O(n log n).
std::vector<std::uint32_t> heaviest_first(std::span<const double> weights);

// Prefetching hides the memory's latency from loops that visit values in an order that jumps through memory.
//
// At place k of the order, requests the value of a later place.
template <class T>
void fetch_ahead(std::span<const T> values, std::span<const std::uint32_t> order, std::size_t k) {
  constexpr std::size_t kAhead = 16;
  if (k + kAhead < order.size()) __builtin_prefetch(&values[order[k + kAhead]]);
}

// A winner tree that finds the least loaded of k bins while loads grow. Ties go to the lowest index, as in
// every balancer here, since a left child holds lower bins than its sibling and wins when equal. The update
// from a bin to the root keeps the winner in a register and selects without a branch, which no processor
// could predict. least() takes O(1) and add() O(log k); nothing is allocated after construction.
template <class Load>
class LeastLoaded {
 public:
  explicit LeastLoaded(std::size_t bins)
      : bins_(bins), leaves_(std::bit_ceil(bins)), load_(2 * leaves_), winner_(2 * leaves_) {
    for (std::size_t i = 0; i < leaves_; ++i) winner_[leaves_ + i] = static_cast<std::uint32_t>(i);
    reset();
  }

  // Empties all bins.
  void reset() {
    for (std::size_t i = 0; i < leaves_; ++i)
      load_[leaves_ + i] = i < bins_ ? Load{} : std::numeric_limits<Load>::max();
    replay();
  }

  [[nodiscard]] std::size_t least() const { return winner_[1]; }
  [[nodiscard]] Load load(std::size_t bin) const { return load_[leaves_ + bin]; }

  void add(std::size_t bin, Load amount) { set(bin, load(bin) + amount); }

  // Gives a bin a load that is no sum.
  void set(std::size_t bin, Load value) {
    std::size_t node = leaves_ + bin;
    std::uint32_t winner = static_cast<std::uint32_t>(bin);
    load_[node] = value;
    while (node > 1) {
      const Load brother = load_[node ^ 1];
      const bool is_right = (node & 1) != 0;
      const bool loses = is_right ? !(value < brother) : brother < value;
      winner = loses ? winner_[node ^ 1] : winner;
      value = std::min(brother, value);
      node /= 2;
      load_[node] = value;
      winner_[node] = winner;
    }
  }

  // Adds without updating the tree. least() is valid only after replay().
  void add_unplayed(std::size_t bin, Load amount) { load_[leaves_ + bin] += amount; }
  void replay() {
    for (std::size_t node = leaves_; node-- > 1;) {
      const std::size_t child = 2 * node + (load_[2 * node + 1] < load_[2 * node] ? 1 : 0);
      load_[node] = load_[child];
      winner_[node] = winner_[child];
    }
  }

  // A closed bin is never the least again, unless all are closed.
  void close(std::size_t bin) { set(bin, std::numeric_limits<Load>::max()); }

 private:
  std::size_t bins_;
  std::size_t leaves_;
  // The load and the index of each node's winner. [1] is the root, [leaves_ + i] is bin i.
  std::vector<Load> load_;
  std::vector<std::uint32_t> winner_;
};

}  // namespace equipoise
