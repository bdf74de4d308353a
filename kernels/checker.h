// What a check of an op is made of: random inputs in both places, poisoned outputs, and the comparison.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/checks.h"
#include "kernels/random_inputs.h"
#include "kernels/reference/reference.h"

namespace equipoise::kernels {

using reference::Values;

// An input as the device holds it and as the reference reads it.
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

// The checks and timed calls of row ops that have a file of their own; rows.cpp gathers them with the others.

void check_embedding(Checker& checker, const Rows& shape);
void fill(Embedding& call, const Rows& shape, RowTensors& tensors);
void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors);

void check_attention_merge(Checker& checker, const Rows& shape);
void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors);

inline std::string text_of(const Rows& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
}

}  // namespace equipoise::kernels
