// Is what we are about to time right? Every op of a backend against its float64 reference, on fresh random
// inputs without zeros, outputs filled with NaN before the call. The profiler refuses to time a backend that
// fails.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"

namespace equipoise::kernels {

struct CheckResult {
  std::string op;      // "attention_forward"
  std::string tensor;  // which output: "out", "log_sum", "query_gradient"
  std::string shape;   // what it ran on, for people
  double error = 0;    // relative Frobenius error; infinite if the output holds a NaN
  double limit = 0;
  [[nodiscard]] bool passed() const { return error <= limit; }  // false for NaN
};

// sqrt(sum (got - expected)^2 / sum expected^2); infinite where sizes differ or `got` is not finite.
double relative_error(std::span<const double> expected, std::span<const float> got);

// Limits by element type. f32: a few hundred roundings of 2^-24. bf16: results that are rounded once (2^-9)
// in `elementwise` and `gemm`; attention also rounds the probabilities, its backward pass twice more.
struct CheckLimits {
  double elementwise = 0;
  double gemm = 0;
  double attention_forward = 0;
  double attention_backward = 0;
  double statistics = 0;  // f32 row statistics: log_sum, inverse_rms, weight gradients
};
CheckLimits check_limits(ElementType type);

std::vector<CheckResult> check_attention(Backend& backend, std::uint64_t seed);
std::vector<CheckResult> check_gemm(Backend& backend, std::uint64_t seed);
// The ops of row_ops.h, on shapes with and without rests of a vector, or on shapes of one's own.
std::vector<CheckResult> check_rows(Backend& backend, std::uint64_t seed);
std::vector<CheckResult> check_row_shapes(Backend& backend, std::uint64_t seed, std::span<const Rows> shapes);

// Every member calls it with its own communicator and the same seed; host f32 buffers.
std::vector<CheckResult> check_collectives(Communicator& communicator, std::uint64_t seed);

}  // namespace equipoise::kernels
