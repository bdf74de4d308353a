// Is the plan right? What ranks computed for a step against every slice alone, in float64
// (ReferenceModel).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/execution/executable_step.h"
#include "sim/execution/parameters.h"
#include "sim/execution/rank_executor.h"

namespace equipoise::execution {

// --- What a plan must compute, whatever its packing, sharding and schedule: every sequence alone, unpacked, in
// float64, in one process. Only the inputs of layers are kept, a layer is computed again for its backward,
// and logits exist for a block of tokens at a time: 16K tokens of a small model fit in a few GB.

// Tokens [begin, end) of a document of `document_tokens`, attending to nothing before `begin`, where its
// positions start from 0. A group of dependent chunks is one sequence: all that its chunks hold.
struct Sequence {
  std::int64_t document = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t document_tokens = 0;

  [[nodiscard]] std::int64_t tokens() const { return end - begin; }
};

struct WeightedSequence {
  Sequence sequence;
  double weight = 1;  // of each of its token losses
};

class ReferenceModel {
 public:
  using Values = std::vector<std::vector<double>>;  // by tensor of the inventory, row-major

  // bf16_weights: weights are rounded to bf16 first, as a device that holds them so has them.
  ReferenceModel(const ModelShape& model, std::uint64_t seed, bool bf16_weights = false);

  // The sums of each sequence's token losses, in order; the gradients of weight * sum are added to gradients().
  // On `threads` threads, with a copy of the gradients each.
  // Which thread takes what depends on the lengths only: the same call gives the same bits again.
  std::vector<double> add_all(std::span<const WeightedSequence> sequences, int threads);

  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const Values& gradients() const { return gradients_; }
  [[nodiscard]] const Values& weights() const { return weights_; }
  // For tests that move a weight and look what the loss does.
  [[nodiscard]] double& weight(std::size_t tensor, std::size_t element) { return weights_[tensor][element]; }

 private:
  ModelShape model_;
  std::uint64_t seed_;
  std::vector<Tensor> tensors_;
  Values weights_;
  Values gradients_;
};

// --- What was executed against it.

inline constexpr double kLimitF32 = 1e-4;   // relative Frobenius error of each gradient, and of the loss
inline constexpr double kLimitBf16 = 3e-2;  // each op rounds to 2^-9; errors of a dozen layers add up

struct Equivalence {
  double loss = 0;  // by the step's normaliser
  double reference_loss = 0;
  double loss_error = 0;     // relative
  double worst_error = 0;    // of any gradient
  std::string worst_tensor;  // its name
  double limit = kLimitF32;
  std::int64_t tokens = 0;

  [[nodiscard]] bool holds() const { return worst_error <= limit && loss_error <= limit; }
};

// `reference` has run the sequences and nothing else; `losses` are the sums of their token losses.
Equivalence compare(const ExecutableStep& step, const Gathered& gathered, const ReferenceModel& reference,
                    const std::vector<WeightedSequence>& sequences, const std::vector<double>& losses,
                    double limit);

Equivalence check_equivalence(const ExecutableStep& step, const Gathered& gathered, const ModelShape& model,
                              std::uint64_t seed, kernels::ElementType type, int threads);

// --- Does packing change the loss? What each way of normalising makes of a step's token losses, against the
// mean over its tokens, which no plan changes.

struct LossBias {
  std::string normalizer;
  double loss = 0;
  double bias = 0;  // relative to the token mean
};

// By LossNormalizer, in order; then "micro-batch": the mean over micro-batches of the means of their tokens,
// as a framework has it that averages where it computes. `losses` are sums over tokens,
// [lane][micro-batch][slice]. The sum is shown per token of a full step (`nominal_tokens`): its bias is how
// much larger or smaller this step's gradient is than a full one's.
std::vector<LossBias> loss_biases(const Step& step,
                                  const std::vector<std::vector<std::vector<double>>>& losses,
                                  double nominal_tokens);

}  // namespace equipoise::execution
