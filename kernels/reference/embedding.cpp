// Looking tokens up in a shard of the vocabulary, and adding their gradients to it.
#include <span>

#include "kernels/reference/row_checks.h"

namespace equipoise::kernels {
namespace {

using reference::index;

constexpr std::int64_t kTokensHere = 23;  // of the checked shard: few, so that tokens come up again

// Calls body(row, row of the table) for every row whose token the shard holds.
template <class Body>
void for_held_tokens(std::span<const std::int32_t> tokens, std::int64_t first_token, Body body) {
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const std::int64_t token = tokens[row] - first_token;
    if (token >= 0 && token < kTokensHere) body(static_cast<std::int64_t>(row), token);
  }
}

// The timed table has as many entries as the call has rows, in an order that jumps: what is moved is what the
// table of row ops says, and no row lies beside the one before it.
const std::int32_t* some_tokens(const Rows& shape, RowTensors& tensors) {
  return tensors.shared_integers([&] {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % shape.rows);
    return tokens;
  });
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
  Values gradient(before.values);  // it adds to what was there
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
  call = {shape, 0, shape.rows, some_tokens(shape, tensors), tensors.elements(n), tensors.elements(n)};
}

void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape, 0, shape.rows, some_tokens(shape, tensors), tensors.elements(n), tensors.elements(n)};
}

}  // namespace equipoise::kernels
