#include "sim/cost/sparse_attention.h"

#include <algorithm>

namespace equipoise {

// These are shares of the bf16 peak, which is 989 TFLOP/s on an H800.
constexpr double kForward = 640.0 / 989, kBackward = 100.0 / 989, kScores = 1021.0 / 2500;
constexpr int kHeadsAtOnce = 64;
constexpr double kScoreBytes = 3 * 4;

SparseAttention::SparseAttention(const ModelShape& model, int tensor, const DeviceFacts& device) {
  const double peak = device.peak_bf16_tflops * 1e12;
  const int heads = model.heads / tensor;
  const double value = as_double(model.mla->kv_lora), key = value + model.mla->rope_dim;
  flops_.attended = 2 * heads * (key + value);
  flops_.backward = 2 * heads * (3 * key + 2 * value);
  flops_.scored = model.indexer->pair_flops();
  if (model.indexer_learns()) {
    flops_.target = 2 * heads * key;
    flops_.learning = 2 * flops_.scored;
  }
  const double computed = as_double(std::max(kHeadsAtOnce, heads)) / heads;
  seconds_.attended = computed * flops_.attended / (kForward * peak);
  seconds_.backward = computed * flops_.backward / (kBackward * peak);
  seconds_.scored = flops_.scored / (kScores * peak) + kScoreBytes / (1e9 * device.memory_GBps);
  seconds_.target = computed * flops_.target / (kForward * peak);
  seconds_.learning = flops_.learning / (kBackward * peak);
}

}  // namespace equipoise
