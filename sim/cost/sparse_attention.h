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
// Scores are made for a block of queries at a time, whose memory is not counted.
#pragma once

#include "profiler/profile/profile.h"
#include "sim/workload/model.h"

namespace equipoise {

class SparseAttention {
 public:
  // Expects a model with an indexer.
  SparseAttention(const ModelShape& model, int tensor, const DeviceFacts& device);

  // How many pairs the layer attends to, and how many its indexer scores; none of these if it has none.
  struct Pairs {
    double scored = 0, chosen = 0;
  };
  // What a layer takes on a TP rank.
  [[nodiscard]] double forward_seconds(Pairs pairs) const { return forward(seconds_, pairs); }
  [[nodiscard]] double backward_seconds(Pairs pairs) const { return backward(seconds_, pairs); }
  [[nodiscard]] double forward_flops(Pairs pairs) const { return forward(flops_, pairs); }
  [[nodiscard]] double backward_flops(Pairs pairs) const { return backward(flops_, pairs); }

 private:
  // What the kernels take for a pair.
  struct OfPair {
    double attended = 0, backward = 0, scored = 0, target = 0, learning = 0;
  };
  static double forward(const OfPair& of_pair, Pairs pairs) {
    return pairs.chosen * of_pair.attended +
           (pairs.scored > 0 ? pairs.scored * of_pair.scored + pairs.chosen * of_pair.target : 0);
  }
  static double backward(const OfPair& of_pair, Pairs pairs) {
    return pairs.chosen * (of_pair.backward + (pairs.scored > 0 ? of_pair.learning : 0));
  }

  OfPair flops_, seconds_;
};

}  // namespace equipoise
