// How long the GPU waits in a pass of a layer: for the host that launches its kernels, and for copies to the
// host's memory and back.
#pragma once

#include <array>
#include <cstdint>

#include "sim/cost/cost_basis.h"

namespace equipoise {

class Stalls {
 public:
  explicit Stalls(const CostBasis& basis);

  // The wait for the host. `before` is the pass that its rank runs before it, or one of so many `sharers`
  // that live on its lead.
  [[nodiscard]] Picoseconds for_host(LayerKind kind, Issued pass, Issued before, int sharers = 1) const;
  // The wait for the copies of a pass that takes `spent` (Layout::activation_offload): a copy must be
  // complete before the next layer's begins.
  [[nodiscard]] Picoseconds for_copies(LayerKind kind, std::int64_t tokens, Picoseconds spent) const;

 private:
  const CostBasis& basis_;
  std::array<double, kLayerKinds> offload_seconds_{};  // per token and layer
};

}  // namespace equipoise
