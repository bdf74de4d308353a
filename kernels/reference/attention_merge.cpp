// Joining two attentions over disjoint keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/row_checks.h"

namespace equipoise::kernels {
namespace {

struct Merged {
  Values out;
  Values log_sum;
};

// From the definition: numerators add, denominators add. `highest` only keeps the exponentials in range.
Merged attention_merge(int head_dim, const Values& out, const Values& log_sum, const Values& part,
                       const Values& part_log_sum) {
  Merged result{Values(out.size()), Values(log_sum.size())};
  for (std::size_t i = 0; i < log_sum.size(); ++i) {
    const double highest = std::max(log_sum[i], part_log_sum[i]);
    const double own = std::exp(log_sum[i] - highest);
    const double other = std::exp(part_log_sum[i] - highest);
    result.log_sum[i] = highest + std::log(own + other);
    for (std::size_t c = 0; c < static_cast<std::size_t>(head_dim); ++c) {
      const std::size_t at = i * static_cast<std::size_t>(head_dim) + c;
      result.out[at] = ((own > 0 ? own * out[at] : 0) + (other > 0 ? other * part[at] : 0)) / (own + other);
    }
  }
  return result;
}

}  // namespace

void check_attention_merge(Checker& checker, const Rows& shape) {
  constexpr int kHeads = 3;
  const auto head_dim = static_cast<int>(shape.columns);
  const std::string what = std::to_string(shape.rows) + " rows, " + std::to_string(kHeads) + " heads of " +
                           std::to_string(head_dim);
  Backend& backend = checker.backend();
  const std::int64_t sums = shape.rows * kHeads;
  const Input out = checker.input(sums * head_dim);
  const Input part = checker.input(sums * head_dim);
  // Every fifth row of a head saw no key on one side, in turn.
  std::vector<float> own(static_cast<std::size_t>(sums));
  std::vector<float> other(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = 0.5F * static_cast<float>(i % 7) - 1.25F;
    other[i] = 0.75F * static_cast<float>(i % 4) + 0.125F;
    if (i % 5 == 1) (i % 2 == 0 ? own : other)[i] = -std::numeric_limits<float>::infinity();
  }
  const Buffer log_sum = upload_f32(backend, own);
  const Buffer part_log_sum = upload_f32(backend, other);
  backend.run(AttentionMerge{shape.rows, kHeads, head_dim, out.device.data(), log_sum.floats(),
                             part.device.data(), part_log_sum.floats()});
  const Merged expected = attention_merge(head_dim, out.values, {own.begin(), own.end()}, part.values,
                                          {other.begin(), other.end()});
  checker.compare("attention_merge", "out", what, expected.out, out.device, checker.limits().elementwise);
  checker.compare_f32("attention_merge", "log_sum", what, expected.log_sum, log_sum);
}

void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors) {
  constexpr int kHeadDim = 64;
  const std::int64_t n = shape.rows * shape.columns;
  const std::int64_t heads = shape.columns / kHeadDim;
  call.rows = shape.rows;
  call.heads = static_cast<int>(heads);
  call.head_dim = kHeadDim;
  call.out = tensors.elements(n);
  call.log_sum = tensors.positive_floats(shape.rows * heads);
  call.part = tensors.elements(n);
  call.part_log_sum = tensors.positive_floats(shape.rows * heads);
}

}  // namespace equipoise::kernels
