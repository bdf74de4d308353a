// The price of attention to keys that an indexer chooses: modelled, not measured on the profile's device.
//
// Each kernel runs its products at the share of the device's bf16 peak that public figures of such kernels
// show. Its time grows with pairs of queries and keys alone, whatever documents they are in:
//   forward   attention to chosen keys in the latent space, whose heads share a key of kv_lora + rope_dim and
//             a value of kv_lora numbers; DeepSeek's FlashMLA, 640 TFLOP/s on an H800
//   backward  its five products; TileLang's examples/deepseek_v32, 100 TFLOP/s on an H800
//   scores    the indexer's, of all causal pairs; ROCm/aiter, pull request 5434, 1,021 TFLOP/s in FP8 on a
//             GPU with 2,500 in bf16; no figure of a training kernel was found
//   choice    writes each score in fp32 and reads it twice
//   target    attention's weights once more, of chosen pairs, from which the indexer learns
//   learning  two products of the chosen pairs' scores, which gather keys as the backward does
// A kernel computes at least 64 heads at once. As in Megatron-core every TP rank runs the whole indexer.
#pragma once

#include "profiler/profile/profile.h"
#include "sim/workload/model.h"

namespace equipoise {

class SparseAttention {
 public:
  // `model` has an indexer.
  SparseAttention(const ModelShape& model, int tensor, const DeviceFacts& device);

  // Seconds of a layer on a TP rank. `scored`: pairs that its indexer scores; 0 if it has none.
  struct Pairs {
    double scored = 0, chosen = 0;
  };
  [[nodiscard]] double forward_seconds(Pairs pairs) const {
    return pairs.chosen * attended_ +
           (pairs.scored > 0 ? pairs.scored * scored_ + pairs.chosen * target_ : 0);
  }
  [[nodiscard]] double backward_seconds(Pairs pairs) const {
    return pairs.chosen * (backward_ + (pairs.scored > 0 ? learning_ : 0));
  }
  // FLOPs of the forward.
  [[nodiscard]] double flops(Pairs pairs) const {
    return pairs.chosen * attended_flops_ + pairs.scored * scored_flops_;
  }

 private:
  double attended_flops_ = 0, scored_flops_ = 0;                                 // of a pair
  double attended_ = 0, backward_ = 0, scored_ = 0, target_ = 0, learning_ = 0;  // seconds of a pair
};

}  // namespace equipoise
