#include "sim/cost/sparse_attention.h"

#include <algorithm>

namespace equipoise {

// Shares of the bf16 peak, which is 989 TFLOP/s on an H800.
constexpr double kForward = 640.0 / 989, kBackward = 100.0 / 989, kScores = 1021.0 / 2500;
constexpr int kHeadsAtOnce = 64;
constexpr double kScoreBytes = 3 * 4;

SparseAttention::SparseAttention(const ModelShape& model, int tensor, const DeviceFacts& device) {
  const double peak = device.peak_bf16_tflops * 1e12;
  const double heads = std::max(kHeadsAtOnce, model.heads / tensor);
  const double value = as_double(model.mla->kv_lora), key = value + model.mla->rope_dim;
  attended_flops_ = 2 * heads * (key + value);
  scored_flops_ = model.indexer->pair_flops();
  attended_ = attended_flops_ / (kForward * peak);
  backward_ = 2 * heads * (3 * key + 2 * value) / (kBackward * peak);
  scored_ = scored_flops_ / (kScores * peak) + kScoreBytes / (1e9 * device.memory_GBps);
  if (!model.training.trains(WeightKind::qkv)) return;  // the indexer does not learn
  target_ = 2 * heads * key / (kForward * peak);
  learning_ = 2 * scored_flops_ / (kBackward * peak);
}

}  // namespace equipoise
