// Does packing change the loss? What each way of normalising makes of a step's token losses, against the mean
// over its tokens, which no plan changes.
#pragma once

#include <string>
#include <vector>

#include "sim/execution/executable_step.h"

namespace equipoise::execution {

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
