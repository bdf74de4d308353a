#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "sim/execution/float64_gemm.h"

using namespace equipoise;
using namespace equipoise::execution;

namespace {

std::vector<double> random_values(std::int64_t count, SplitMix64& random) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = static_cast<double>(random.next() % 2001) / 1000 - 1;
  return values;
}

double element(const Operand& m, std::int64_t i, std::int64_t j) {
  return m.data[i * m.row + j * m.column];
}

void add_by_definition(const Product& p) {
  for (std::int64_t i = 0; i < p.rows; ++i)
    for (std::int64_t j = 0; j < p.columns; ++j)
      for (std::int64_t k = 0; k < p.depth; ++k)
        p.c[i * p.c_row + j] += element(p.a, i, k) * element(p.b, k, j);
}

// Products with sizes around those of tiles and blocks, of matrices that are part of wider ones.
void check_sizes(const Float64Gemm& gemm, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  CAPTURE(gemm.isa);
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(depth);
  constexpr std::int64_t kMargin = 5;
  SplitMix64 random(static_cast<std::uint64_t>(rows * 1000000 + columns * 1000 + depth));
  std::vector<double> workspace(gemm.workspace);
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const std::int64_t a_row = (a_transposed ? rows : depth) + kMargin;
      const std::int64_t b_row = (b_transposed ? depth : columns) + kMargin;
      const auto a = random_values((a_transposed ? depth : rows) * a_row, random);
      const auto b = random_values((b_transposed ? columns : depth) * b_row, random);
      std::vector<double> c = random_values(rows * (columns + kMargin), random);
      std::vector<double> expected = c;
      Product product{rows, columns, depth, {}, {}, nullptr, 0};
      product.a = a_transposed ? Operand{a.data(), 1, a_row} : Operand{a.data(), a_row, 1};
      product.b = b_transposed ? Operand{b.data(), 1, b_row} : Operand{b.data(), b_row, 1};
      product.c_row = columns + kMargin;
      product.c = expected.data();
      add_by_definition(product);
      product.c = c.data();
      gemm.add_product(product, workspace.data());
      double worst = 0;  // what lies next to C is in it too: it must not change
      for (std::size_t i = 0; i < c.size(); ++i) worst = std::max(worst, std::abs(c[i] - expected[i]));
      CHECK(worst < 1e-13 * static_cast<double>(depth + 1));
    }
  }
}

}  // namespace

TEST_CASE("the float64 product is that of its definition, for every instruction set of this processor") {
  for (const Float64Gemm& gemm : float64_gemms()) {
    for (const std::int64_t rows : {1, 3, 8, 97})
      for (const std::int64_t columns : {1, 7, 24, 385})
        for (const std::int64_t depth : {1, 128, 131}) check_sizes(gemm, rows, columns, depth);
  }
}
