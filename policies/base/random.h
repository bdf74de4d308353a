// The policies' only source of randomness: SplitMix64 and a Fisher-Yates shuffle from the last index down, j
// = next() mod (i + 1). The small modulo bias is part of the contract, since other implementations reproduce
// it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace equipoise {

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed = 0) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

// Indices are drawn a block ahead, so that memory is prefetched before the swaps. A million documents exceed
// a cache.
template <class Container>
void shuffle(Container& items, SplitMix64& random) {
  constexpr std::size_t kBlock = 16;
  std::array<std::size_t, kBlock> places;
  for (std::size_t left = items.size(); left > 1;) {
    const std::size_t block = std::min(kBlock, left - 1);
    for (std::size_t b = 0; b < block; ++b) {
      places[b] = static_cast<std::size_t>(random.next() % (left - b));
      __builtin_prefetch(&items[places[b]], 1);
    }
    for (std::size_t b = 0; b < block; ++b) std::swap(items[--left], items[places[b]]);
  }
}

}  // namespace equipoise
