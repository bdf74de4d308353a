#include "sim/execution/equivalence.h"

#include <algorithm>
#include <cmath>

namespace equipoise::execution {
namespace {

struct Distance {
  double difference = 0, size = 0;  // squared norms
};

Distance distance(const std::vector<float>& found, const std::vector<double>& expected) {
  Distance d;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(found[i]) - expected[i];
    d.difference += difference * difference;
    d.size += expected[i] * expected[i];
  }
  return d;
}

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
      const double loss = sum_of(losses[l][j]);
      sum += loss / tokens;
      count += 1;
    }
  return sum / count;
}

// The sequences that a step's plan asks for: every slice, and every group of dependent chunks.
std::vector<WeightedSequence> sequences_of(const ExecutableStep& step) {
  std::vector<WeightedSequence> sequences;
  for (std::size_t l = 0; l < step.step.lanes.size(); ++l) {
    const Lane& lane = step.step.lanes[l];
    for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
      const MicroBatch& micro_batch = lane.micro_batches[j];
      for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) {
        const Slice& slice = micro_batch.slices[i];
        const bool later = micro_batch.chunk.count > 1 && slice.begin > micro_batch.chunk.group_begin;
        if (later && !sequences.empty() && sequences.back().sequence.document == slice.document &&
            sequences.back().sequence.end == slice.begin) {
          sequences.back().sequence.end = slice.end;  // chunks of a group follow each other
          continue;
        }
        sequences.push_back({{slice.document, slice.begin, slice.end, step.documents.of(slice.document)},
                             step.weights[l][j][i]});
      }
    }
  }
  return sequences;
}

}  // namespace

Equivalence compare(const ExecutableStep& step, const Gathered& gathered, const ReferenceModel& reference,
                    const std::vector<WeightedSequence>& sequences, const std::vector<double>& losses,
                    double limit) {
  Equivalence result;
  result.limit = limit;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    result.reference_loss += sequences[i].weight * losses[i];
    result.tokens += sequences[i].sequence.tokens();
  }
  for (std::size_t l = 0; l < step.step.lanes.size(); ++l)
    for (std::size_t j = 0; j < step.step.lanes[l].micro_batches.size(); ++j)
      for (std::size_t i = 0; i < step.step.lanes[l].micro_batches[j].slices.size(); ++i)
        result.loss += step.weights[l][j][i] * gathered.losses[l][j][i];
  result.loss_error =
      std::abs(result.loss - result.reference_loss) / std::max(std::abs(result.reference_loss), 1e-300);

  std::vector<Distance> distances;
  double size = 0, elements = 0;
  for (std::size_t t = 0; t < reference.tensors().size(); ++t) {
    distances.push_back(distance(gathered.gradients[t], reference.gradients()[t]));
    size += distances.back().size;
    elements += static_cast<double>(reference.tensors()[t].elements());
  }
  // A gradient that is mathematically zero (Q and K of documents of one token) is compared with the size of
  // the others. In fp32 rounding leaves a few 1e-7 of that size, because terms cancel.
  constexpr double kLeastShare = 1e-2;
  for (std::size_t t = 0; t < distances.size(); ++t) {
    const double least =
        kLeastShare * std::sqrt(size / elements * static_cast<double>(reference.tensors()[t].elements()));
    const double error =
        std::sqrt(distances[t].difference) / std::max({std::sqrt(distances[t].size), least, 1e-300});
    if (error > result.worst_error || std::isnan(error)) {
      result.worst_error = std::isnan(error) ? HUGE_VAL : error;
      result.worst_tensor = reference.tensors()[t].name;
    }
  }
  if (std::isnan(result.loss)) result.loss_error = HUGE_VAL;
  return result;
}

Equivalence check_equivalence(const ExecutableStep& step, const Gathered& gathered, const ModelShape& model,
                              std::uint64_t seed, kernels::ElementType type, int threads) {
  const bool bf16 = type == kernels::ElementType::bf16;
  const std::vector<WeightedSequence> sequences = sequences_of(step);
  ReferenceModel reference(model, seed, bf16);
  const std::vector<double> losses = reference.add_all(sequences, threads);
  return compare(step, gathered, reference, sequences, losses, bf16 ? kLimitBf16 : kLimitF32);
}

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
