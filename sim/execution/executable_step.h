// A step of a plan made ready to run: the simulator's own op program for it, where every token goes, and what
// its loss counts. Every rank has the same.
#pragma once

#include <vector>

#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/step/op_program.h"

namespace equipoise::execution {

// Tokens of the documents of a trace; one that is read again goes on counting.
class DocumentLengths {
 public:
  DocumentLengths() = default;
  explicit DocumentLengths(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  [[nodiscard]] std::int64_t of(std::int64_t document) const {
    return lengths_.at(static_cast<std::size_t>(document) % lengths_.size());
  }

 private:
  std::vector<std::int64_t> lengths_;
};

struct ExecutableStep {
  Step step;
  DocumentLengths documents;
  OpProgram program;                            // sequential
  bool repeats_attention = false;               // selective recompute: in every backward
  std::vector<std::vector<Sharding>> sharding;  // [lane][micro-batch]
  // [lane][micro-batch][slice]: what each of its tokens' losses is multiplied with
  std::vector<std::vector<std::vector<double>>> weights;
};

// The program as ranks run it that overlap nothing: a collective beside a kernel comes before it, gradients
// are reduced after the last backward.
OpProgram sequential(OpProgram program);

// How the losses of a step's tokens become one number. token: mean over all tokens of the step. sample: mean
// over slices of the means of their tokens. sum: the sum. stable (HBP): each lane divides by its slices times
// the mean tokens per slice of the step, and the lanes are averaged.
enum class LossNormalizer { token, sample, sum, stable };
inline constexpr std::string_view kLossNormalizerNames[] = {"token", "sample", "sum", "stable"};

// Weights of ExecutableStep. A document cut into slices or chunks counts as that many samples, a group of
// dependent chunks as one.
std::vector<std::vector<std::vector<double>>> loss_weights(const Step& step, LossNormalizer normalizer);

}  // namespace equipoise::execution
