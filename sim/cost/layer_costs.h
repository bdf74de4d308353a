// Everything that prices one layout: a value for each thing with a price.
#pragma once

#include "sim/cost/attention_costs.h"
#include "sim/cost/embedding_and_head_costs.h"
#include "sim/cost/layer_ops.h"
#include "sim/cost/stalls.h"

namespace equipoise {

struct LayerCosts {
  LayerCosts(const ModelShape& model, const Layout& layout, const Profile& profile, const RankGrid& grid,
             NetworkRates network, FrameworkOptions framework)
      : basis(model, layout, profile, grid, std::move(framework)), kernels(basis, network) {}
  LayerCosts(const LayerCosts&) = delete;  // because the values refer to each other
  LayerCosts& operator=(const LayerCosts&) = delete;

  [[nodiscard]] const ModelShape& model() const { return basis.model; }
  [[nodiscard]] const Layout& layout() const { return basis.layout; }
  [[nodiscard]] const Profile& profile() const { return basis.profile; }
  [[nodiscard]] const RankGrid& grid() const { return basis.grid; }
  [[nodiscard]] const FrameworkOptions& framework() const { return basis.framework; }
  [[nodiscard]] const LayerCounts& layer_counts() const { return basis.layer_counts; }
  [[nodiscard]] const LayerCounts& backward_counts() const { return basis.backward_counts; }
  [[nodiscard]] std::int64_t kv_bytes_per_token() const { return basis.kv_bytes_per_token; }
  [[nodiscard]] const HostOptions& host() const { return basis.framework.host; }

  CostBasis basis;
  AttentionCosts attention{basis};
  KernelCosts kernels;
  RowOpCosts rows{basis, kernels};
  CastCosts casts{basis, kernels};
  AdapterCosts adapters{basis, kernels};
  LinearCosts linear{basis, kernels, adapters};
  FfnCosts ffn{basis, rows, casts, linear};
  ExpertCosts experts{basis, kernels, rows, casts, adapters, ffn};
  EmbeddingAndHeadCosts ends{basis, kernels, rows, casts, linear};
  RecurrenceCosts recurrence{basis, kernels, casts, linear};
  LayerOps layers{basis, kernels, rows, casts, linear, ffn, experts, recurrence};
  Stalls stalls{basis};
};

}  // namespace equipoise
