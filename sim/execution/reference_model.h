// What a plan must compute, whatever its packing, sharding and schedule: every sequence alone, unpacked, in
// float64, in one process. Only the inputs of layers are kept, a layer is computed again for its backward,
// and logits exist for a block of tokens at a time. So 16K tokens of a small model fit into a few GB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/execution/parameters.h"
#include "sim/workload/model.h"

namespace equipoise::execution {

// Tokens [begin, end) of a document of `document_tokens`. They attend to nothing before `begin`, where
// positions start from 0. A group of dependent chunks is one sequence with all tokens of its chunks.
struct Sequence {
  std::int64_t document = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t document_tokens = 0;

  [[nodiscard]] std::int64_t tokens() const { return end - begin; }
};

struct WeightedSequence {
  Sequence sequence;
  double weight = 1;  // multiplies each of its token losses
};

class ReferenceModel {
 public:
  using Values = std::vector<std::vector<double>>;  // by tensor of the inventory, row-major

  // With bf16_weights weights are first rounded to bf16, as on a device that holds them so.
  ReferenceModel(const ModelShape& model, std::uint64_t seed, bool bf16_weights = false);

  // The sums of each sequence's token losses, in order. Adds the gradients of weight * sum to gradients().
  // Each of the `threads` threads has a copy of the gradients. Lengths alone decide which thread takes what,
  // so equal calls give equal bits.
  std::vector<double> add_all(std::span<const WeightedSequence> sequences, int threads);

  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const Values& gradients() const { return gradients_; }
  [[nodiscard]] const Values& weights() const { return weights_; }
  // Lets tests move a weight and observe the loss.
  [[nodiscard]] double& weight(std::size_t tensor, std::size_t element) { return weights_[tensor][element]; }

 private:
  ModelShape model_;
  std::uint64_t seed_;
  std::vector<Tensor> tensors_;
  Values weights_;
  Values gradients_;
};

}  // namespace equipoise::execution
