// Checks what is about to be timed: compares every op of a backend with its float64 reference, on fresh
// random inputs without zeros, with outputs that held NaN before the call. The profiler refuses to time a
// backend that fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "kernels/ops.h"
#include "kernels/random_inputs.h"
#include "kernels/reference/reference.h"
#include "policies/base/text.h"

namespace equipoise::kernels {

struct CheckResult {
  std::string op;      // "attention_forward"
  std::string tensor;  // which output: "out", "log_sum", "query_gradient"
  std::string shape;   // the shape, for people
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
// Every member calls it with its own communicator and the same seed. Buffers are f32 on the host.
std::vector<CheckResult> check_collectives(Communicator& communicator, std::uint64_t seed);

// --- The parts of a check: reference, random inputs on host and device, poisoned outputs, comparison.

using reference::Values;

// An input, both as the device holds it and as the reference reads it.
struct Input {
  Buffer device;
  Values values;
};

class Checker {
 public:
  Checker(Backend& backend, std::uint64_t seed)
      : backend_(backend), random_(seed), limits_(check_limits(backend.element_type())) {}

  Input input(std::int64_t count, float scale = 1.0F) {
    const std::vector<float> floats =
        rounded_to(backend_.element_type(), random_values(count, scale, random_));
    return {upload(backend_, floats), Values(floats.begin(), floats.end())};
  }

  std::vector<std::int32_t> integers(std::int64_t count, std::int32_t below) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int32_t& value : values)
      value = static_cast<std::int32_t>(random_.next() % static_cast<std::uint64_t>(below));
    return values;
  }

  Buffer output(std::int64_t count) { return poisoned(backend_, count); }
  Buffer statistics(std::int64_t count) { return poisoned_f32(backend_, count); }

  void compare(const std::string& op, const std::string& tensor, const std::string& shape,
               const Values& expected, const Buffer& got, double limit) {
    results_.push_back({op, tensor, shape, relative_error(expected, download(backend_, got)), limit});
  }
  void compare_f32(const std::string& op, const std::string& tensor, const std::string& shape,
                   const Values& expected, const Buffer& got) {
    results_.push_back(
        {op, tensor, shape, relative_error(expected, download_f32(backend_, got)), limits_.statistics});
  }

  [[nodiscard]] const CheckLimits& limits() const { return limits_; }
  Backend& backend() { return backend_; }
  std::vector<CheckResult> take() { return std::move(results_); }

 private:
  Backend& backend_;
  SplitMix64 random_;
  CheckLimits limits_;
  std::vector<CheckResult> results_;
};

inline std::string text_of(const Rows& shape) {
  return concatenated(shape.rows, " x ", shape.columns);
}

}  // namespace equipoise::kernels
