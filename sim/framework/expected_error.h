// How long a predicted step really takes: a 90 % interval, from published steps.
//
// Errors are alike within a kind: framework, dense or with experts, LoRA, architecture of the GPU, precision. The
// steps of one benchmark are nearly one error, so that each benchmark counts once. A kind with fewer than five of
// them has no interval, and a wider kind answers for it. tests/published_errors.py makes the table of kinds from
// published steps, and measures how many steps of held-out sources lie inside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/ops.h"

namespace equipoise {

// What an error hangs on, of steps that are to be predicted.
struct StepFamily {
  std::string framework;  // the preset
  bool experts = false;
  bool lora = false;
  std::string gpu;
  Precision precision = Precision::bf16;
  [[nodiscard]] std::string text() const;  // "megatron, dense, H100 SXM 80GB, bf16"
};

// Measured over predicted lies between low and high in 90 of 100 cases.
struct ErrorInterval {
  double low = 1, high = 1;
  std::int64_t rows = 0, sources = 0;  // published steps, and benchmarks that they belong to
};

struct ExpectedError {
  std::optional<ErrorInterval> step;      // of a step's time; none: no published step is of its GPUs
  std::optional<ErrorInterval> speed_up;  // of the ratio of two rows; none: unknown
  std::string nearest;                // the kind of the published steps
  double nearest_error = 0;           // mean absolute error of them
};

// Null where nothing published is like these steps: another framework than the shipped ones.
std::optional<ExpectedError> expected_error(const StepFamily& steps);

}  // namespace equipoise
