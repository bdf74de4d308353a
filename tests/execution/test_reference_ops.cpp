#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/checks.h"
#include "policies/base/random.h"
#include "sim/execution/parameters.h"
#include "sim/execution/reference_ops.h"

using namespace equipoise;
using namespace equipoise::execution::reference;

namespace {

constexpr double kClose = 1e-12;

Matrix random_matrix(Eigen::Index rows, Eigen::Index columns, SplitMix64& random) {
  Matrix values(rows, columns);
  for (Eigen::Index i = 0; i < values.size(); ++i)
    values.data()[i] = static_cast<double>(random.next() >> 11) / 4503599627370496.0 - 1.0;  // 2^52
  return values;
}

std::vector<double> values_of(const Matrix& m) {
  return {m.data(), m.data() + m.size()};
}

double distance(const Matrix& m, const std::vector<double>& values) {
  return (m - Eigen::Map<const Matrix>(values.data(), m.rows(), m.cols())).norm() / m.norm();
}

}  // namespace

TEST_CASE("RMSNorm divides by the root of the mean square, epsilon inside the root") {
  Matrix x(2, 2);
  x << 3, 4, 0, 0;
  Matrix weight(1, 2);
  weight << 2, 0.5;
  const Matrix y = rms_norm(x, weight);
  const double root = std::sqrt((9.0 + 16.0) / 2 + 1e-5);
  CHECK(y(0, 0) == doctest::Approx(6 / root).epsilon(kClose));
  CHECK(y(0, 1) == doctest::Approx(2 / root).epsilon(kClose));
  CHECK(y(1, 0) == 0);
}

TEST_CASE("RoPE turns pairs half a head apart by the position, slower in later pairs, and back") {
  // head_dim 4: pairs (0, 2) and (1, 3) with frequencies 1 and 10000^(-1/2) = 0.01. Row 1 is position 1.
  Matrix x = Matrix::Zero(2, 8);
  x(0, 0) = 5;
  x(1, 0) = 1;  // head 0, pair 0, first
  x(1, 7) = 1;  // head 1, pair 1, second
  const Matrix before = x;
  rope(x, 2, 4, Turn::forward);
  CHECK(x(0, 0) == 5);
  CHECK(x(1, 0) == doctest::Approx(std::cos(1.0)).epsilon(kClose));
  CHECK(x(1, 2) == doctest::Approx(std::sin(1.0)).epsilon(kClose));
  CHECK(x(1, 7) == doctest::Approx(std::cos(0.01)).epsilon(kClose));
  CHECK(x(1, 5) == doctest::Approx(-std::sin(0.01)).epsilon(kClose));
  rope(x, 2, 4, Turn::back);
  CHECK((x - before).norm() < kClose);
}

TEST_CASE("SwiGLU multiplies silu of the gate with up") {
  Matrix gate(1, 2);
  gate << 0, 1;
  Matrix up(1, 2);
  up << 3, 2;
  const Matrix y = swiglu(gate, up);
  CHECK(y(0, 0) == 0);
  CHECK(y(0, 1) == doctest::Approx(2 / (1 + std::exp(-1.0))).epsilon(kClose));
}

TEST_CASE("attention over two tokens, by hand") {
  // One head of 2. Token 0 sees itself. Token 1 scores (1 x 2) / sqrt 2 and (1 x 0) / sqrt 2.
  Matrix q(2, 2);
  q << 9, 9, 1, 0;
  Matrix k(2, 2);
  k << 2, 7, 0, 7;
  Matrix v(2, 2);
  v << 1, 2, 5, 6;
  const Matrix out = attention({1, 1, 2}, q, k, v);
  CHECK(out(0, 0) == 1);
  CHECK(out(0, 1) == 2);
  const double p = 1 / (1 + std::exp(-std::sqrt(2.0)));  // of token 0
  CHECK(out(1, 0) == doctest::Approx(p * 1 + (1 - p) * 5).epsilon(kClose));
  CHECK(out(1, 1) == doctest::Approx(p * 2 + (1 - p) * 6).epsilon(kClose));
}

TEST_CASE("attention and its gradient equal those that the kernels are checked against") {
  // 300 tokens are two blocks of queries; the kernels' reference has no blocks.
  constexpr Eigen::Index kTokens = 300;
  SplitMix64 random(4);
  const Matrix q = random_matrix(kTokens, 4 * 8, random);
  const Matrix k = random_matrix(kTokens, 2 * 8, random);
  const Matrix v = random_matrix(kTokens, 2 * 8, random);
  const Matrix out_gradient = random_matrix(kTokens, 4 * 8, random);
  const kernels::AttentionShape shape{8, 4, 2};
  const std::vector<kernels::Piece> pieces{{0, kTokens, 0, kTokens}};
  const auto expected =
      kernels::reference::attention(shape, pieces, values_of(q), values_of(k), values_of(v));
  CHECK(distance(attention({4, 2, 8}, q, k, v), expected.out) < kClose);
  const auto slopes = kernels::reference::attention_gradient(shape, pieces, values_of(q), values_of(k),
                                                             values_of(v), values_of(out_gradient));
  const auto gradient = attention_backward({4, 2, 8}, q, k, v, out_gradient);
  CHECK(distance(gradient.q, slopes.query) < kClose);
  CHECK(distance(gradient.k, slopes.key) < kClose);
  CHECK(distance(gradient.v, slopes.value) < kClose);
}
