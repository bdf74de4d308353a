// W(d) from a profile: what a document of d tokens adds to the forward and backward of all layers on one GPU
// of this layout, in seconds. The packing policies' default cost.
#pragma once

#include <vector>

#include "policies/workload.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {

// W_l is the time per token of everything but attention at the window's token count, CP and TP communication
// included. W_a is the attention of the document's share on a CP rank as part of a well filled packed call:
// the launch and the half-empty waves of a lone document are not its own. Attention is tabulated at 16
// lengths an octave and interpolated (log-log), so that W of a million documents costs a few milliseconds.
class ProfiledWorkload final : public Workload {
 public:
  ProfiledWorkload(const LayerCosts& costs, std::int64_t window);

  void of(std::span<const std::int64_t> tokens, std::span<double> out) const override;
  // Alone on `degree` ranks: its share of the local work, and the CP communication of that degree.
  void on_group(std::span<const std::int64_t> tokens, int degree, std::span<double> out) const override;
  [[nodiscard]] double linear_seconds_per_token() const { return linear_; }
  [[nodiscard]] double attention_seconds(std::int64_t tokens) const;

 private:
  const LayerCosts& costs_;
  double linear_ = 0;
  double local_linear_ = 0;          // of a token on its rank, without CP communication
  std::vector<double> log_seconds_;  // at lengths 2^(i / 16)
};

}  // namespace equipoise
