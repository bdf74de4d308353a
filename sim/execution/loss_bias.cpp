#include "sim/execution/loss_bias.h"

namespace equipoise::execution {
namespace {

using Weights = std::vector<std::vector<std::vector<double>>>;

double weighted(const Weights& weights, const Weights& losses) {
  double sum = 0;
  for (std::size_t l = 0; l < losses.size(); ++l)
    for (std::size_t j = 0; j < losses[l].size(); ++j)
      for (std::size_t i = 0; i < losses[l][j].size(); ++i) sum += weights[l][j][i] * losses[l][j][i];
  return sum;
}

double mean_of_micro_batches(const Step& step, const Weights& losses) {
  double sum = 0, count = 0;
  for (std::size_t l = 0; l < losses.size(); ++l)
    for (std::size_t j = 0; j < losses[l].size(); ++j) {
      const auto tokens = static_cast<double>(step.lanes[l].micro_batches[j].tokens());
      if (tokens == 0) continue;
      double loss = 0;
      for (const double of_slice : losses[l][j]) loss += of_slice;
      sum += loss / tokens;
      count += 1;
    }
  return sum / count;
}

}  // namespace

std::vector<LossBias> loss_biases(const Step& step, const Weights& losses, double nominal_tokens) {
  const double token_mean = weighted(loss_weights(step, LossNormalizer::token), losses);
  std::vector<LossBias> biases;
  const auto add = [&](std::string_view name, double loss) {
    biases.push_back({std::string(name), loss, loss / token_mean - 1});
  };
  for (std::size_t n = 0; n < std::size(kLossNormalizerNames); ++n) {
    const auto normalizer = static_cast<LossNormalizer>(n);
    const double loss = weighted(loss_weights(step, normalizer), losses);
    add(kLossNormalizerNames[n], normalizer == LossNormalizer::sum ? loss / nominal_tokens : loss);
  }
  add("micro-batch", mean_of_micro_batches(step, losses));
  return biases;
}

}  // namespace equipoise::execution
