#include "sim/cost/stalls.h"

#include <algorithm>

#include "policies/base/index.h"
#include "sim/cost/kept_bytes.h"

namespace equipoise {

Stalls::Stalls(const CostBasis& basis) : basis_(basis) {
  const Layout& layout = basis.layout;
  for (int k = 0; k < kLayerKinds && layout.activation_offload > 0; ++k)
    if (basis.layer_counts[at(k)] > 0)
      offload_seconds_[at(k)] = layout.activation_offload *
                                kept_bytes(basis.model, layout, basis.framework, static_cast<LayerKind>(k)) /
                                (layout.host_link_GBps * 1e9);
}

// Forward and backward follow each other, so one inherits the lead of the other, unless the host waits for
// the GPU between them.
Picoseconds Stalls::for_host(LayerKind kind, Issued pass, Issued before, int sharers) const {
  const HostOptions& host = basis_.framework.host;
  const bool waits =
      (host.waits_at_hops && basis_.layout.pipeline > 1) || (host.waits_for_routes && is_moe(kind));
  const int layers = std::max(1, basis_.layer_counts[at(kind)] / basis_.layout.pipeline);
  return stall_of(pass, waits ? 0 : lead_after(before, layers) / sharers);
}

Picoseconds Stalls::for_copies(LayerKind kind, std::int64_t tokens, Picoseconds spent) const {
  const double seconds = offload_seconds_[at(kind)] * as_double(tokens);
  return std::max<Picoseconds>(0, to_picoseconds(seconds) - spent);
}

}  // namespace equipoise
