#include "policies/sharding/kernel_pieces.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

double TileAttentionCost::seconds(std::span<const Segment> segments) const {
  double pairs = 0;
  for_each_kernel_piece(segments, [&](std::int64_t queries, std::int64_t keys) {
    const std::int64_t computed = (queries + tile_ - 1) / tile_ * tile_;
    // The first query sees keys - queries + 1 keys, the last one all: twice their mean is a whole number.
    pairs += 0.5 * static_cast<double>(computed) * static_cast<double>(2 * keys - queries + 1);
  });
  return pairs;
}

}  // namespace equipoise
