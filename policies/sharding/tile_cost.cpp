#include "policies/sharding/sharding.h"

namespace equipoise {

double TileAttentionCost::seconds(std::span<const Segment> segments) const {
  double pairs = 0;
  for (const Segment& s : segments) {
    const auto padded = static_cast<double>((s.queries() + tile_ - 1) / tile_ * tile_);
    const auto before = static_cast<double>(s.q_begin - s.kv_begin);
    pairs += padded * before + padded * (padded + 1) / 2;
  }
  return pairs;
}

}  // namespace equipoise
