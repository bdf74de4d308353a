#include "policies/sharding/sharding.h"

namespace equipoise {

double TileAttentionCost::seconds(std::span<const Segment> segments) const {
  double pairs = 0;
  for (const Segment& s : segments) {
    const std::int64_t q = s.queries();
    const std::int64_t computed = (q + tile_ - 1) / tile_ * tile_;
    // The first query sees keys - queries + 1 keys, the last one all: twice their mean is a whole number.
    pairs += 0.5 * static_cast<double>(computed) * static_cast<double>(2 * s.keys() - q + 1);
  }
  return pairs;
}

}  // namespace equipoise
