#include "sim/cost/cost_basis.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {

CostBasis::CostBasis(const ModelShape& of_model, const Layout& of_layout, const Profile& of_profile,
                     const RankGrid& of_grid, FrameworkOptions options)
    : model(of_model),
      layer_counts(of_model.layer_counts()),
      backward_counts(of_model.backward_counts()),
      layout(of_layout),
      framework(std::move(options)),
      profile(of_profile),
      grid(of_grid),
      tp_group(of_grid.shape(Axis::tensor)),
      element_bytes(of_profile.device().element_bytes),
      kv_bytes_per_token(of_model.kv_width_of_rank(of_layout.tensor) *
                         static_cast<std::int64_t>(element_bytes)) {
  for (int m = 0; m < kMixers; ++m) mixers[at(m)] = model.layers_of(static_cast<Mixer>(m));
  if (torch_ring()) kv_bytes_per_token *= model.heads / std::max(layout.tensor, model.kv_heads);
  if (framework.expert_capacity_factor > 0)
    framework.host.waits_for_routes = false;  // a fixed capacity needs no counts
  if (!framework.seconds_per_op) return;
  HostOptions& host = framework.host;
  host.seconds_per_launch = *framework.seconds_per_op;
  host.launches = {};
  host.by_op = true;
  host.waits_at_hops = host.waits_for_routes = false;
}

bool runs_torch_ring(const ModelShape& model, const Layout& layout, const FrameworkOptions& framework) {
  const ContextCommFacts& form = layout.acting_facts();
  return framework.linear_layers != LinearLayers::fused && form.goes_in_ring && !form.nested && !model.mla;
}

}  // namespace equipoise
