// What every price of a layout starts from: the model, the layout, the framework, the profile, the ranks, and
// what follows from these.
#pragma once

#include <cstdint>

#include "profiler/profile/profile.h"
#include "sim/framework/framework_options.h"
#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

inline constexpr double kBf16Bytes = 2;
inline constexpr double kFp32Bytes = 4;

// Whether a ring over CP is PyTorch's, which sends K and V of all query heads (context_exchange/ring.cpp).
bool runs_torch_ring(const ModelShape& model, const Layout& layout, const FrameworkOptions& framework);

struct CostBasis {
  // The profile and the grid must outlive this value.
  CostBasis(const ModelShape& model, const Layout& layout, const Profile& profile, const RankGrid& grid,
            FrameworkOptions framework);

  ModelShape model;
  LayerCounts layer_counts{};     // layers of the model, by kind
  LayerCounts backward_counts{};  // layers that a backward goes through, by kind
  std::array<int, kMixers> mixers{};  // layers of the model, by mixer
  Layout layout;
  FrameworkOptions framework;
  const Profile& profile;
  const RankGrid& grid;
  GroupShape tp_group;
  double element_bytes = 2;             // bytes of an activation's or a weight's element
  std::int64_t kv_bytes_per_token = 0;  // bytes of K and V of one layer on one TP rank, as CP sends them

  [[nodiscard]] double share_of(Mixer mixer) const {
    return as_double(mixers[at(mixer)]) / model.all_layers();
  }
  // Layers that attend to keys.
  [[nodiscard]] int attending_layers() const { return model.all_layers() - mixers[at(Mixer::recurrence)]; }
  // Layers that attend to all keys up to a query's own.
  [[nodiscard]] double share_attending_to_all() const {
    return share_of(Mixer::attention) + share_of(Mixer::parallel);
  }
  [[nodiscard]] int recurring_layers() const {
    return mixers[at(Mixer::recurrence)] + mixers[at(Mixer::parallel)];
  }
  [[nodiscard]] bool torch_layers() const { return framework.linear_layers != LinearLayers::fused; }
  [[nodiscard]] bool casts_by_torchao() const { return torch_layers() && layout.precision == Precision::fp8; }
  // Whether ZeRO-3 gathers the weights of layers in FP8. That needs torchao's casts, and neither experts nor
  // MLA, whose linear layers are not priced as PyTorch's.
  [[nodiscard]] bool gathers_fp8_parameters() const {
    return framework.fp8_param_gather && casts_by_torchao() && !model.moe && !model.mla;
  }
  [[nodiscard]] bool torch_ring() const { return runs_torch_ring(model, layout, framework); }
  // Whether a recomputed layer runs less than its forward: it skips the ops with Op::once.
  [[nodiscard]] bool repeats_less() const { return framework.early_stop || torch_layers(); }
  // Tokens of a TP rank outside its column- and row-parallel layers.
  [[nodiscard]] std::int64_t own_rows(std::int64_t tokens) const {
    return (tokens + layout.tensor - 1) / layout.tensor;
  }
  // Elements that a row op moves: those of our own kernel, or a framework's `usual` number.
  [[nodiscard]] double row_elements(double own, double usual) const {
    return framework.own_kernels ? own : usual;
  }
  // Whether the forward of one micro-batch and the backward of another are issued together: where each hides
  // the other's exchanges of experts, or where the schedule asks for it. Not with ZeRO-3, whose gathers go
  // part by part of a single op.
  [[nodiscard]] bool pairs_micro_batches(bool asked = false) const {
    const bool hides = framework.expert_overlap == ExpertOverlap::dualpipe && layout.expert > 1;
    return (hides || asked) && layout.zero < 3;
  }
};

}  // namespace equipoise
