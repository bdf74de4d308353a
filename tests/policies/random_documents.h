// Seeded document lengths of the shapes that break packers: many ties, many ones, heavy tails, all equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "policies/base/random.h"

namespace equipoise {

inline std::int64_t below(SplitMix64& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(bound));
}

// `count` lengths in [1, longest].
inline std::vector<std::int64_t> random_lengths(SplitMix64& random, std::int64_t count,
                                                std::int64_t longest) {
  const std::int64_t shape = below(random, 5);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(count));
  for (std::int64_t& length : lengths) {
    const std::int64_t uniform = 1 + below(random, longest);
    switch (shape) {
      case 0:
        length = uniform;
        break;
      case 1:
        length = 1 + below(random, std::min<std::int64_t>(longest, 4));
        break;
      case 2:
        length = std::max<std::int64_t>(1, uniform * uniform / longest * uniform / longest);
        break;
      case 3:
        length = below(random, 10) == 0 ? longest : 1 + below(random, std::max<std::int64_t>(1, longest / 8));
        break;
      default:
        length = std::max<std::int64_t>(1, longest / 2);
        break;
    }
  }
  return lengths;
}

}  // namespace equipoise
