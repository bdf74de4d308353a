// The parameters of a LLaMA-like model: their names as in a Hugging Face state dict, their shapes, and their
// initial values. An element's value depends only on seed, tensor name and place in the whole tensor. So
// every rank makes its own shard (rows, or a piece of every row), and all layouts start from the same model.
// The text for training is here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "sim/workload/model.h"

namespace equipoise::execution {

inline constexpr double kNormEpsilon = 1e-5;  // for every RMSNorm
inline constexpr double kRopeBase = 10000.0;

struct Tensor {
  std::string name;
  std::int64_t rows = 0;     // outputs of a projection, tokens of the embedding, or 1 for a norm
  std::int64_t columns = 0;  // inputs
  bool norm = false;         // whether values start near 1, not around 0

  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

// The tensors of a layer in inventory order.
enum class LayerTensor : std::uint8_t { input_norm, q, k, v, o, post_norm, gate, up, down };
inline constexpr int kLayerTensors = 9;

// All tensors: the embedding, those of LayerTensor layer by layer, the final norm, and the head unless tied.
std::vector<Tensor> inventory(const ModelShape& model);

// Places in the inventory. A tied head is the embedding.
inline constexpr std::size_t kEmbeddingIndex = 0;
std::size_t layer_index(int layer, LayerTensor tensor);
std::size_t final_norm_index(const ModelShape& model);
std::size_t head_index(const ModelShape& model);

// Throws UserError, which names what is no dense LLaMA's: experts, latent attention, windows, biases, a plain
// FFN.
void check_runnable(const ModelShape& model);

// Fills in elements [first, first + out.size()) of the tensor, in row-major order of the whole tensor.
// Matrices are uniform around 0 with variance 1 / columns, so that activations and gradients keep their size
// from layer to layer. Norms are uniform in 1 +- 1/4, so that a skipped or swapped norm shows.
void fill_initial(std::uint64_t seed, const Tensor& tensor, std::int64_t first, std::span<float> out);

// The nearest bf16 value, ties to even.
float rounded_to_bf16(float value);

// --- Random numbers without state: value `counter` of stream `key`, in any order, on any rank. It is
// SplitMix64's output function, applied first to the key and then to the counter.

inline std::uint64_t counter_hash(std::uint64_t key, std::uint64_t counter) {
  return SplitMix64(SplitMix64(key).next() + counter * 0x9e3779b97f4a7c15ULL).next();
}

// --- The synthetic text for real training. A trace has only lengths, so a token is a hash of seed, document
// and position, and any rank can make any token. Ids are 1 .. vocab - 1. Id 0 ends a document and is only
// ever a target, so every token has a target and a document of n tokens has n losses.

inline constexpr std::int64_t kEndOfDocument = 0;

inline std::int64_t token_at(std::uint64_t seed, std::int64_t document, std::int64_t position,
                             std::int64_t vocab) {
  constexpr std::uint64_t kStream = 0x746f6b656e73ULL;  // separate from the streams of the weights
  const std::uint64_t key = counter_hash(seed ^ kStream, static_cast<std::uint64_t>(document));
  const std::uint64_t value = counter_hash(key, static_cast<std::uint64_t>(position));
  return 1 + static_cast<std::int64_t>(value % static_cast<std::uint64_t>(vocab - 1));
}

// The next token, also if a slice ends inside the document.
inline std::int64_t target_at(std::uint64_t seed, std::int64_t document, std::int64_t position,
                              std::int64_t document_tokens, std::int64_t vocab) {
  if (position + 1 >= document_tokens) return kEndOfDocument;
  return token_at(seed, document, position + 1, vocab);
}

}  // namespace equipoise::execution
