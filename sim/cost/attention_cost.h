// Attention of one rank over segments of a sharding, priced by the profile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/sharding/sharding.h"
#include "profiler/profile/attention.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {

// An attention call over segments of a Sharding, counted: the choice of a sharding rule counts calls, which
// are not counted again when the chosen sharding is priced.
struct CountedAttention {
  std::span<const Segment> segments;
  std::int64_t window;
  AttentionCall call;
};
using AttentionCounts = std::vector<CountedAttention>;

class ProfiledAttentionCost final : public AttentionCost {
 public:
  explicit ProfiledAttentionCost(const LayerCosts& costs) : costs_(costs) {}

  // Forward seconds of the segments, mean of the model's layers, for sharding rules that choose by cost. The
  // counted calls are remembered.
  [[nodiscard]] double seconds(std::span<const Segment> segments) const override;
  // Both passes of one layer. `strided`: as in Sharding; `head_shares`: ranks that share the heads.
  [[nodiscard]] LayerCosts::AttentionTimes times(std::span<const Segment> segments, bool strided,
                                                 std::int64_t window, int head_shares, RangeUse& use) const;

  // Forgets the counted calls: their segments are gone.
  void forget() { counted_.clear(); }
  // The counted calls over segments of the sharding; and those alone remembered again. The segments may have
  // moved to another Sharding with the memory that they lie in.
  [[nodiscard]] AttentionCounts counts_of(const Sharding& sharding) const;
  void remember(const AttentionCounts& counts) { counted_ = counts; }

 private:
  // The counted call over exactly these segments, or null.
  [[nodiscard]] const AttentionCall* known(std::span<const Segment> segments, std::int64_t window) const;

  const LayerCosts& costs_;
  mutable AttentionCounts counted_;  // since forget()
};

}  // namespace equipoise
