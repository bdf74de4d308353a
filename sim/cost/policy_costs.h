// The costs by which policies decide, priced from the profile: W(d) of a document for packing, and the
// attention of segments for sharding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/sharding/sharding.h"
#include "policies/workload.h"
#include "profiler/profile/attention.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {

// W(d), the packing policies' default cost: the seconds that a document of d tokens adds to the forward and
// backward of all layers on one GPU of this layout.
//
// W_l is the time per token of everything but attention at the window's token count, including CP and TP
// communication. W_a is the attention of the document's share on a CP rank as part of a well filled packed
// call, so it excludes the launch and the half-empty waves of a single document. Attention is tabulated at 16
// lengths per octave and interpolated (log-log), so that W of a million documents costs a few milliseconds.
class ProfiledWorkload : public Workload {
 public:
  ProfiledWorkload(const LayerCosts& costs, std::int64_t window);

  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override;
  // For a document alone on `degree` ranks: its share of the local work, and that degree's CP communication.
  void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override;
  // W already assumes a document that is spread over the layout's CP ranks.
  void spread(std::span<const std::int64_t> tokens, int, std::span<double> out) const override {
    of(tokens, out);
  }
  [[nodiscard]] double attention_seconds(std::int64_t tokens) const;

 private:
  const LayerCosts& costs_;
  double linear_ = 0;
  double local_linear_ = 0;          // per token on its rank, without CP communication
  std::vector<double> log_seconds_;  // at lengths 2^(i / 16)
};

// A counted attention call over segments of a Sharding. The choice of a sharding rule counts calls; the price
// of the chosen sharding reuses the counts.
struct CountedAttention {
  std::span<const Segment> segments;
  std::int64_t window;
  AttentionCall call;
};
using AttentionCounts = std::vector<CountedAttention>;

class ProfiledAttentionCost final : public AttentionCost {
 public:
  explicit ProfiledAttentionCost(const LayerCosts& costs) : costs_(costs) {}

  // Forward seconds of the segments, as a mean over the model's layers, for sharding rules that choose by
  // cost. The counted calls are remembered.
  [[nodiscard]] double seconds(std::span<const Segment> segments) const override {
    return seconds(segments, PieceForm{});
  }
  // `form` is how the sharding cut them.
  [[nodiscard]] double seconds(std::span<const Segment> segments, PieceForm form) const;
  // Both passes of one layer. `head_shares` is the number of ranks that share the heads.
  [[nodiscard]] AttentionTimes times(std::span<const Segment> segments, PieceForm form, std::int64_t window,
                                     int head_shares, RangeUse& use) const;

  // Forgets the counted calls, whose segments no longer exist.
  void forget() { counted_.clear(); }
  // Extracts the counted calls over segments of the sharding, and restores only those. The segments may have
  // moved to another Sharding with their memory.
  [[nodiscard]] AttentionCounts counts_of(const Sharding& sharding) const;
  void remember(const AttentionCounts& counts) { counted_ = counts; }

 private:
  // The counted call over exactly these segments, or null.
  [[nodiscard]] const AttentionCall* known(std::span<const Segment> segments, std::int64_t window) const;

  const LayerCosts& costs_;
  mutable AttentionCounts counted_;  // since forget()
};

// Adds segments cut where the chunks of their documents end: each sees the keys of its own chunk (Reach). The
// second form does so for a whole sharding. A window as long as a chunk does not limit them further.
void cut_into_chunks(std::span<const Segment> segments, std::int64_t chunk, std::vector<Segment>& out);
void cut_into_chunks(const Sharding& sharding, std::int64_t chunk, Sharding& out);

}  // namespace equipoise
