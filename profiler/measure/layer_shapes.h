// The linear layers whose GEMM shapes are worth measuring: those of public models' configurations.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "profiler/measure/point.h"

namespace equipoise::measure {

struct LayerShape {
  std::string_view model;
  int hidden = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocabulary = 0;
};

// Shapes that a GPU runs: published models. Shapes that a CPU rank runs: narrow stacks and the smallest
// model.
std::span<const LayerShape> gpu_layers();
std::span<const LayerShape> cpu_layers();

// The forward, input-gradient and weight-gradient GEMMs of the model's linear layers on one rank of `tensor`
// (skipped where it does not divide), over `tokens` rows.
std::vector<GemmPoint> gemms_of(const LayerShape& layer, int tensor, std::int64_t tokens);

}  // namespace equipoise::measure
