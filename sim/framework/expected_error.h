// How long a predicted step really takes, and how far off the ratio of two rows is: 90 % intervals, from
// published steps.
//
// Errors are alike within a kind: framework, dense or with experts, LoRA, architecture of the GPU, precision.
// The steps of one benchmark are nearly one error, so that each benchmark counts once. A kind with fewer than
// five of them has no interval, and a wider kind answers for it. Most of an error is common to two rows of
// one study, and no part of their ratio's: that has kinds of its own, two policies of one layout or two
// layouts. tests/published_errors.py makes the table of kinds from published steps, and measures how many
// steps of held-out sources lie inside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/ops.h"

namespace equipoise {

// The properties of steps on which the error of their prediction depends.
struct StepFamily {
  std::string framework;  // the preset
  bool experts = false;
  bool lora = false;
  std::string gpu;
  Precision precision = Precision::bf16;
  std::string mixers{};                    // "linear recurrences", "an indexer", or "" for attention alone
  [[nodiscard]] std::string text() const;  // "megatron, dense, H100 SXM 80GB, bf16"
};

// In 90 of 100 cases measured over predicted is between low and high.
struct ErrorInterval {
  double low = 1, high = 1;
  std::int64_t rows = 0, sources = 0;  // number of published steps, and of the benchmarks that they come from
};

struct ExpectedError {
  std::optional<ErrorInterval> step;      // for a step's time; none if there is no published step on its GPUs
  std::optional<ErrorInterval> speed_up;  // for the ratio of two rows of one layout; none if unknown
  std::optional<ErrorInterval> speed_up_of_layouts;  // and of two layouts
  std::string nearest;                // the kind of the published steps
  double nearest_error = 0;           // their mean absolute error
  bool is_of_ratio = false;           // `step` is that of a ratio to a measured step, which anchors the study
};

// Null if no published step is like these: their framework is not a shipped one.
std::optional<ExpectedError> expected_error(const StepFamily& steps);

}  // namespace equipoise
