// A plain blocked GEMM on the attention's register tiles, for builds without oneDNN. B is packed in panels of
// kPanel columns (zero-padded), so any transposition and any size takes the same inner loop.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"

namespace equipoise::kernels::EQUIPOISE_ISA {

constexpr int kPanel = 64;
constexpr int kDepth = 256;
constexpr int kRowBlock = 64;

static int least(std::int64_t a, std::int64_t b) {
  return static_cast<int>(a < b ? a : b);
}

static void pack(const GemmShape& shape, const float* b, std::int64_t k0, int depth, std::int64_t j0,
                 int columns, float* panel) {
  for (int k = 0; k < depth; ++k) {
    for (int j = 0; j < kPanel; ++j) {
      const std::int64_t at = shape.transpose_b ? (j0 + j) * shape.k + k0 + k : (k0 + k) * shape.n + j0 + j;
      panel[k * kPanel + j] = j < columns ? b[at] : 0.0F;
    }
  }
}

void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  alignas(64) float panel[kDepth * kPanel];
  alignas(64) float block[kRowBlock * kPanel];
  const std::ptrdiff_t a_row = shape.transpose_a ? 1 : shape.k;
  const std::ptrdiff_t a_column = shape.transpose_a ? shape.m : 1;
  for (std::int64_t j0 = 0; j0 < shape.n; j0 += kPanel) {
    const int columns = least(shape.n - j0, kPanel);
    for (std::int64_t k0 = 0; k0 < shape.k; k0 += kDepth) {
      const int depth = least(shape.k - k0, kDepth);
      const bool add = shape.accumulate || k0 > 0;
      pack(shape, b, k0, depth, j0, columns, panel);
      for (std::int64_t i0 = 0; i0 < shape.m; i0 += kRowBlock) {
        const int rows = least(shape.m - i0, kRowBlock);
        multiply(rows, kPanel, depth, {a + i0 * a_row + k0 * a_column, a_row, a_column}, panel, kPanel, block,
                 kPanel, false);
        for (int i = 0; i < rows; ++i) {
          float* to = c + (i0 + i) * shape.n + j0;
          for (int j = 0; j < columns; ++j) to[j] = block[i * kPanel + j] + (add ? to[j] : 0.0F);
        }
      }
    }
  }
}

#define EQUIPOISE_TEXT_OF(name) #name
#define EQUIPOISE_TEXT(name) EQUIPOISE_TEXT_OF(name)

// Declares all kernels of the instruction set.
extern const CpuKernels kKernels;
const CpuKernels kKernels = {EQUIPOISE_TEXT(EQUIPOISE_ISA),
                             attention_workspace,
                             attention_forward,
                             attention_backward,
                             gemm,
                             run_row_op};

}  // namespace equipoise::kernels::EQUIPOISE_ISA
