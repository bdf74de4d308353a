// C += A B in float64, where the reference spends nearly all its time. Eigen picks its instructions when it
// is compiled, and Debian's programs run on any processor. So this one product is compiled for three
// instruction sets and chosen at run time, which makes it two to four times as fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace equipoise::execution {

// Element (i, j) is data[i * row + j * column]: a matrix, its transpose, or a block of either.
struct Operand {
  const double* data = nullptr;
  std::ptrdiff_t row = 0;
  std::ptrdiff_t column = 1;
};

struct Product {
  std::int64_t rows = 0;     // of A and C
  std::int64_t columns = 0;  // of B and C
  std::int64_t depth = 0;    // columns of A, rows of B
  Operand a;
  Operand b;
  double* c = nullptr;
  std::ptrdiff_t c_row = 0;
};

void add_product(const Product& product);

// The variants that this processor can run, best first. Tests try each.
struct Float64Gemm {
  const char* isa = nullptr;
  std::size_t workspace = 0;  // doubles
  void (*add_product)(const Product&, double* workspace) = nullptr;
};
std::vector<Float64Gemm> float64_gemms();

}  // namespace equipoise::execution
