// The one inner kernel of the CPU backend: a small matrix product held in vector registers.
#pragma once

#include <cstddef>

#include "kernels/cpu/vector.h"

namespace equipoise::kernels::EQUIPOISE_ISA {

// A[i, k] = data[i * row + k * column]: the same code reads A and its transpose, since A is only broadcast.
struct LeftMatrix {
  const float* data;
  std::ptrdiff_t row;
  std::ptrdiff_t column;
};

// AVX-512 has 32 registers for 4 x 4 accumulators; AVX2 and SSE have 16, so 4 x 2.
inline constexpr int kRowsHeld = 4;
inline constexpr int kVectorsHeld = kLanes == 16 ? 4 : 2;

template <int rows, int vectors>
static inline void multiply_held(int depth, const LeftMatrix& a, const float* b, std::ptrdiff_t b_row,
                                 float* c, std::ptrdiff_t c_row, bool accumulate) {
  Vector sum[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      sum[i][v] = accumulate ? load(c + i * c_row + v * kLanes) : broadcast(0.0F);
    }
  }
  for (int k = 0; k < depth; ++k) {
    Vector right[vectors];
    for (int v = 0; v < vectors; ++v) right[v] = load(b + k * b_row + v * kLanes);
    for (int i = 0; i < rows; ++i) {
      const float left = a.data[i * a.row + k * a.column];
      for (int v = 0; v < vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) store(c + i * c_row + v * kLanes, sum[i][v]);
  }
}

template <int rows>
static inline void multiply_rows(int columns, int depth, const LeftMatrix& a, const float* b,
                                 std::ptrdiff_t b_row, float* c, std::ptrdiff_t c_row, bool accumulate) {
  int j = 0;
  for (; j + kVectorsHeld * kLanes <= columns; j += kVectorsHeld * kLanes) {
    multiply_held<rows, kVectorsHeld>(depth, a, b + j, b_row, c + j, c_row, accumulate);
  }
  // The rest in one go: a vector at a time would leave the units idle for want of independent sums.
  switch ((columns - j) / kLanes) {
    case 3:
      multiply_held<rows, 3>(depth, a, b + j, b_row, c + j, c_row, accumulate);
      break;
    case 2:
      multiply_held<rows, 2>(depth, a, b + j, b_row, c + j, c_row, accumulate);
      break;
    case 1:
      multiply_held<rows, 1>(depth, a, b + j, b_row, c + j, c_row, accumulate);
      break;
    default:
      break;
  }
}

// C (+)= A * B for `columns` a multiple of kLanes. B and C have unit column stride.
static inline void multiply(int rows, int columns, int depth, LeftMatrix a, const float* b,
                            std::ptrdiff_t b_row, float* c, std::ptrdiff_t c_row, bool accumulate) {
  int i = 0;
  for (; i + kRowsHeld <= rows; i += kRowsHeld) {
    multiply_rows<kRowsHeld>(columns, depth, a, b, b_row, c, c_row, accumulate);
    a.data += kRowsHeld * a.row;
    c += kRowsHeld * c_row;
  }
  switch (rows - i) {
    case 3:
      multiply_rows<3>(columns, depth, a, b, b_row, c, c_row, accumulate);
      break;
    case 2:
      multiply_rows<2>(columns, depth, a, b, b_row, c, c_row, accumulate);
      break;
    case 1:
      multiply_rows<1>(columns, depth, a, b, b_row, c, c_row, accumulate);
      break;
    default:
      break;
  }
}

}  // namespace equipoise::kernels::EQUIPOISE_ISA
