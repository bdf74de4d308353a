// Attention to the keys that an indexer chooses (DeepSeek sparse attention, arXiv 2512.02556, section 2.1).
//
// The indexer scores every key up to a query's own: each of its heads has a query and a weight, and all share
// one key. The layer attends to the keys with the highest scores alone. So each rank attends in the latent
// space of multi-head latent attention, where all heads share a key of kv_lora + rope_dim numbers.
//
// Training is assumed to be in the sparse stage, as of Megatron-core's --dsa-indexer-use-sparse-loss: the
// indexer learns from the Kullback-Leibler divergence of its scores from attention's own weights over the
// chosen keys, and attention learns from the loss of the model alone.
#pragma once

#include <cstdint>
#include <vector>

namespace equipoise {

struct IndexerShape {
  int heads = 0;
  int dim = 0;                 // of a head, and of the key
  std::int64_t top_keys = 0;   // that a query attends to
  std::vector<bool> reuses{};  // by layer: whether it has no indexer and attends to the keys that the layer
                               // before it does (GLM-5.2); if empty none does

  // FLOPs of the scores of a query and a key: in the forward of all such pairs, and in each of the backward's
  // two products of the chosen ones.
  [[nodiscard]] double pair_flops() const { return 2.0 * heads * dim; }
};

}  // namespace equipoise
