// Vectors of floats for the CPU kernels. Each kernel file is compiled once per instruction set with
// EQUIPOISE_ISA naming it; everything here lives in a namespace of that name so that the copies never mix.
// For the same reason nothing from the standard library is used: an inline function compiled for AVX-512 in
// one file could be the copy that the linker keeps for all.
#pragma once

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

static inline float sum_of(Vector value) {
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += value[lane];
  return total;
}

static inline float largest_of(Vector value) {
  float best = value[0];
  for (int lane = 1; lane < kLanes; ++lane) best = value[lane] > best ? value[lane] : best;
  return best;
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

}  // namespace equipoise::kernels::EQUIPOISE_ISA
