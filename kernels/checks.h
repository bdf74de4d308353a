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
// Checks the ops of row_ops.h on the given shapes, or on shapes with and without a partial vector.
std::vector<CheckResult> check_rows(Backend& backend, std::uint64_t seed);
std::vector<CheckResult> check_row_shapes(Backend& backend, std::uint64_t seed, std::span<const Rows> shapes);

// Every member calls it with its own communicator and the same seed. Buffers are f32 on the host.
std::vector<CheckResult> check_collectives(Communicator& communicator, std::uint64_t seed);

// --- The parts of a check: reference, random inputs on host and device, poisoned outputs, comparison.

// Attention and GEMM again, in float64, written from their definitions: no tiles, no tricks, quadratic memory
// where that is the definition. The backends are checked against these; nothing is timed here. Row ops:
// reference/rows.cpp.
namespace reference {

using Values = std::vector<double>;

inline std::size_t index(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}

struct Attention {
  Values out;      // (query rows, query heads, head dim); rows outside every piece stay 0
  Values log_sum;  // (query rows, query heads)
};
Attention attention(const AttentionShape& shape, std::span<const Piece> pieces, const Values& query,
                    const Values& key, const Values& value);

struct AttentionGradient {
  Values query;
  Values key;
  Values value;
};
// Differentiates the definition: it recomputes the forward pass itself.
AttentionGradient attention_gradient(const AttentionShape& shape, std::span<const Piece> pieces,
                                     const Values& query, const Values& key, const Values& value,
                                     const Values& out_gradient);

Values gemm(const GemmShape& shape, const Values& a, const Values& b, const Values& c_before);

}  // namespace reference

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

// The checks and timed calls of row ops with a file of their own; rows.cpp collects them with the others.

void check_embedding(Checker& checker, const Rows& shape);
void fill(Embedding& call, const Rows& shape, RowTensors& tensors);
void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors);

// An integer below `end` for each row of a timed call, in a jumping order. The call then moves the bytes of
// the table of row ops, and no row is adjacent to the one before it.
const std::int32_t* jumping_integers(std::int64_t rows, std::int64_t end, RowTensors& tensors);

void check_attention_merge(Checker& checker, const Rows& shape);
void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors);

inline std::string text_of(const Rows& shape) {
  return concatenated(shape.rows, " x ", shape.columns);
}

}  // namespace equipoise::kernels
