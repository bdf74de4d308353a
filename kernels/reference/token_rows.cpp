// Looks tokens up in a shard of the vocabulary, and adds their gradients to it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/checks.h"

namespace equipoise::kernels {
namespace {

using reference::index;

constexpr std::int64_t kTokensHere = 23;  // tokens in the checked shard: few, so that they repeat

// Calls body(row, row of the table) for every row whose token the shard holds.
template <class Body>
void for_held_tokens(std::span<const std::int32_t> tokens, std::int64_t first_token, Body body) {
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const std::int64_t token = tokens[row] - first_token;
    if (token >= 0 && token < kTokensHere) body(static_cast<std::int64_t>(row), token);
  }
}

}  // namespace

void check_embedding(Checker& checker, const Rows& shape) {
  constexpr std::int32_t kFirst = 11;
  const std::string what = text_of(shape) + ", " + std::to_string(kTokensHere) + " tokens";
  Backend& backend = checker.backend();
  const auto tokens = checker.integers(shape.rows, 2 * kFirst + static_cast<std::int32_t>(kTokensHere));
  const Buffer device_tokens = upload_integers(backend, tokens);
  const Input table = checker.input(kTokensHere * shape.columns);
  const Input out_gradient = checker.input(shape.rows * shape.columns);
  const Input before = checker.input(kTokensHere * shape.columns);
  const Buffer out = checker.output(shape.rows * shape.columns);
  backend.run(
      Embedding{shape, kFirst, kTokensHere, device_tokens.integers(), table.device.data(), out.data()});
  backend.run(EmbeddingBackward{shape, kFirst, kTokensHere, device_tokens.integers(),
                                out_gradient.device.data(), before.device.data()});
  Values expected(static_cast<std::size_t>(shape.rows * shape.columns), 0.0);
  Values gradient(before.values);  // the op adds to existing values
  for_held_tokens(tokens, kFirst, [&](std::int64_t row, std::int64_t token) {
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      const std::size_t entry = index(token, shape.columns, j);
      expected[at] = table.values[entry];
      gradient[entry] += out_gradient.values[at];
    }
  });
  checker.compare("embedding", "out", what, expected, out, checker.limits().elementwise);
  checker.compare("embedding_backward", "table_gradient", what, gradient, before.device,
                  checker.limits().elementwise);
}

void fill(Embedding& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  const std::int32_t* tokens = jumping_integers(shape.rows, shape.rows, tensors);
  call = {shape, 0, shape.rows, tokens, tensors.elements(n), tensors.elements(n)};
}

void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  const std::int32_t* tokens = jumping_integers(shape.rows, shape.rows, tensors);
  call = {shape, 0, shape.rows, tokens, tensors.elements(n), tensors.elements(n)};
}

// Joins two attentions over disjoint keys.

namespace {

struct Merged {
  Values out;
  Values log_sum;
};

// By definition numerators add, and so do denominators. `highest` only keeps the exponentials in range.
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
  const std::string what = concatenated(shape.rows, " rows, ", kHeads, " heads of ", head_dim);
  Backend& backend = checker.backend();
  const std::int64_t sums = shape.rows * kHeads;
  const Input out = checker.input(sums * head_dim);
  const Input part = checker.input(sums * head_dim);
  // Every fifth row of a head saw no key on one side, alternately.
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
