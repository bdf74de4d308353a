// Checks a plan: compares what ranks computed for a step with every slice alone, in float64 (ReferenceModel).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/execution/executable_step.h"
#include "sim/execution/rank_executor.h"
#include "sim/execution/reference_model.h"

namespace equipoise::execution {

inline constexpr double kLimitF32 = 1e-4;   // relative Frobenius error of each gradient and of the loss
inline constexpr double kLimitBf16 = 3e-2;  // each op rounds to 2^-9, and the errors of a dozen layers add up

struct Equivalence {
  double loss = 0;  // with the step's normalizer
  double reference_loss = 0;
  double loss_error = 0;     // relative
  double worst_error = 0;    // the largest over all gradients
  std::string worst_tensor;  // its name
  double limit = kLimitF32;
  std::int64_t tokens = 0;

  [[nodiscard]] bool holds() const { return worst_error <= limit && loss_error <= limit; }
};

// `reference` must have run these sequences and nothing else; `losses` are the sums of their token losses.
Equivalence compare(const ExecutableStep& step, const Gathered& gathered, const ReferenceModel& reference,
                    const std::vector<WeightedSequence>& sequences, const std::vector<double>& losses,
                    double limit);

Equivalence check_equivalence(const ExecutableStep& step, const Gathered& gathered, const ModelShape& model,
                              std::uint64_t seed, kernels::ElementType type, int threads);

// --- Does packing change the loss? Compares each way to normalize a step's token losses with the mean over
// its tokens, which no plan changes.

struct LossBias {
  std::string normalizer;
  double loss = 0;
  double bias = 0;  // relative to the token mean
};

// By LossNormalizer, in order; then "micro-batch", the mean over micro-batches of the means of their tokens,
// as in a framework that averages where it computes. `losses` are sums over tokens,
// [lane][micro-batch][slice]. The sum is shown per token of a full step (`nominal_tokens`): its bias says how
// much larger or smaller this step's gradient is than a full step's.
std::vector<LossBias> loss_biases(const Step& step,
                                  const std::vector<std::vector<std::vector<double>>>& losses,
                                  double nominal_tokens);

}  // namespace equipoise::execution
