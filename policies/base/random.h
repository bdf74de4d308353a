// The one source of randomness of the policies: SplitMix64 and a Fisher-Yates shuffle from the last index
// down, j = next() mod (i + 1). The small modulo bias is part of the contract: other implementations repeat
// it.
#pragma once

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

template <class Container>
void shuffle(Container& items, SplitMix64& random) {
  for (std::size_t i = items.size(); i-- > 1;) {
    const auto j = static_cast<std::size_t>(random.next() % (i + 1));
    std::swap(items[i], items[j]);
  }
}

}  // namespace equipoise
