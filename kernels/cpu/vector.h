// Vectors of floats for the CPU kernels. Each kernel file is compiled once per instruction set with
// EQUIPOISE_ISA naming it; everything here lives in a namespace of that name so that the copies never mix.
// For the same reason nothing from the standard library is used: an inline function compiled for AVX-512 in
// one file could be the copy that the linker keeps for all.
#pragma once

#include <cstddef>

#ifndef EQUIPOISE_ISA
#error "define EQUIPOISE_ISA: avx512, avx2 or baseline"
#endif

namespace equipoise::kernels::EQUIPOISE_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int VectorInt __attribute__((vector_size(4 * kLanes)));

static inline Vector load(const float* source) {
  Vector value;
  __builtin_memcpy(&value, source, sizeof value);
  return value;
}

static inline void store(float* target, Vector value) {
  __builtin_memcpy(target, &value, sizeof value);
}

static inline Vector broadcast(float value) {
  return value - Vector{};
}

static inline Vector larger(Vector a, Vector b) {
  return a > b ? a : b;
}

// Lanes below `count` keep their value, the others become `filler`. `count` may be negative or large.
static inline Vector first_lanes(Vector value, int count, float filler) {
  VectorInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const VectorInt limit = VectorInt{} + count;
  return lane < limit ? value : broadcast(filler);
}

// Halves of a vector, down to four lanes: reductions in log2 steps.
typedef float Vector4 __attribute__((vector_size(16)));
#if defined(__AVX2__) || defined(__AVX512F__)
typedef float Vector8 __attribute__((vector_size(32)));
#endif

#if defined(__AVX512F__)
#define EQUIPOISE_LOW8(v) __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)
#define EQUIPOISE_HIGH8(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)
#endif
#define EQUIPOISE_LOW4(v) __builtin_shufflevector(v, v, 0, 1, 2, 3)
#define EQUIPOISE_HIGH4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7)

static inline float sum_of(Vector value) {
#if defined(__AVX512F__)
  const Vector8 eight = EQUIPOISE_LOW8(value) + EQUIPOISE_HIGH8(value);
  const Vector4 four = EQUIPOISE_LOW4(eight) + EQUIPOISE_HIGH4(eight);
#elif defined(__AVX2__)
  const Vector4 four = EQUIPOISE_LOW4(value) + EQUIPOISE_HIGH4(value);
#else
  const Vector4 four = value;
#endif
  return (four[0] + four[2]) + (four[1] + four[3]);
}

static inline float largest_of(Vector value) {
#if defined(__AVX512F__)
  const Vector8 low = EQUIPOISE_LOW8(value);
  const Vector8 high = EQUIPOISE_HIGH8(value);
  const Vector8 eight = low > high ? low : high;
  const Vector4 a = EQUIPOISE_LOW4(eight);
  const Vector4 b = EQUIPOISE_HIGH4(eight);
  const Vector4 four = a > b ? a : b;
#elif defined(__AVX2__)
  const Vector4 a = EQUIPOISE_LOW4(value);
  const Vector4 b = EQUIPOISE_HIGH4(value);
  const Vector4 four = a > b ? a : b;
#else
  const Vector4 four = value;
#endif
  const float left = four[0] > four[1] ? four[0] : four[1];
  const float right = four[2] > four[3] ? four[2] : four[3];
  return left > right ? left : right;
}

// exp(x) for x <= 88 with a relative error of about 2e-7; below -87 it gives exp(-87), about 1e-38. 2^t is
// split at the nearest integer n: adding 1.5 * 2^23 leaves n in the low mantissa bits, whence it is shifted
// into the exponent; the rest, |f| <= 1/2, takes the Taylor polynomial of 2^f.
static inline Vector exp_of(Vector x) {
  const Vector lowest = broadcast(-87.0F);
  const Vector t = larger(x, lowest) * 1.44269504089F;
  const Vector shifted = t + 12582912.0F;
  const Vector f = t - (shifted - 12582912.0F);
  Vector p = broadcast(1.5403530e-4F);
  p = p * f + 1.3333558e-3F;
  p = p * f + 9.6181291e-3F;
  p = p * f + 5.5504109e-2F;
  p = p * f + 2.4022651e-1F;
  p = p * f + 6.9314718e-1F;
  p = p * f + 1.0F;
  return (Vector)((VectorInt)p + ((VectorInt)shifted << 23));
}

// --- The one inner kernel of the CPU backend: a small matrix product held in vector registers.

// A[i, k] = data[i * row + k * column]. The same code reads A and its transpose, since A is only broadcast.
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
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v)
      sum[i][v] = accumulate ? load(c + i * c_row + v * kLanes) : broadcast(0.0F);
  for (int k = 0; k < depth; ++k) {
    Vector right[vectors];
    for (int v = 0; v < vectors; ++v) right[v] = load(b + k * b_row + v * kLanes);
    for (int i = 0; i < rows; ++i) {
      const float left = a.data[i * a.row + k * a.column];
      for (int v = 0; v < vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v) store(c + i * c_row + v * kLanes, sum[i][v]);
}

template <int rows>
static inline void multiply_rows(int columns, int depth, const LeftMatrix& a, const float* b,
                                 std::ptrdiff_t b_row, float* c, std::ptrdiff_t c_row, bool accumulate) {
  int j = 0;
  for (; j + kVectorsHeld * kLanes <= columns; j += kVectorsHeld * kLanes)
    multiply_held<rows, kVectorsHeld>(depth, a, b + j, b_row, c + j, c_row, accumulate);
  // The remaining columns at once: one vector at a time would leave units idle, for lack of independent sums.
  const int left = (columns - j) / kLanes;
  if (left == 3) multiply_held<rows, 3>(depth, a, b + j, b_row, c + j, c_row, accumulate);
  if (left == 2) multiply_held<rows, 2>(depth, a, b + j, b_row, c + j, c_row, accumulate);
  if (left == 1) multiply_held<rows, 1>(depth, a, b + j, b_row, c + j, c_row, accumulate);
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
  const int left = rows - i;
  if (left == 3) multiply_rows<3>(columns, depth, a, b, b_row, c, c_row, accumulate);
  if (left == 2) multiply_rows<2>(columns, depth, a, b, b_row, c, c_row, accumulate);
  if (left == 1) multiply_rows<1>(columns, depth, a, b, b_row, c, c_row, accumulate);
}

}  // namespace equipoise::kernels::EQUIPOISE_ISA
