// The product for one instruction set, named by EQUIPOISE_ISA. Nothing from the standard library is used: an
// inline function compiled for AVX-512 here could be the copy that the linker keeps for all.
//
// Goto's scheme: a block of B is packed in panels of kColumnsHeld columns, a block of A in panels of
// kRowsHeld rows, both filled up with zeros; the inner kernel keeps a tile of C in registers and goes down
// one panel of each. Panels are contiguous, so strides and transposes matter to the packing only.
#include "sim/execution/float64_gemm.h"

namespace equipoise::execution::EQUIPOISE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 8;
constexpr int kRowsHeld = 8;  // 8 x 3 sums, 3 of B and 1 of A take 28 of 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 4;
constexpr int kRowsHeld = 4;  // 12 + 3 + 1 of 16
#else
constexpr int kLanes = 2;
constexpr int kRowsHeld = 4;
#endif
constexpr int kVectorsHeld = 3;
constexpr int kColumnsHeld = kVectorsHeld * kLanes;

constexpr int kDepth = 128;                      // a panel of B with so many rows fits into the first cache
constexpr int kRowBlock = 12 * kRowsHeld;        // together with it, a block of A fits into the second
constexpr int kColumnBlock = 16 * kColumnsHeld;  // as does a block of B

typedef double Vector __attribute__((vector_size(8 * kLanes)));

Vector load(const double* source) {
  Vector value;
  __builtin_memcpy(&value, source, sizeof value);
  return value;
}

int least(std::int64_t a, std::int64_t b) {
  return static_cast<int>(a < b ? a : b);
}

// Writes `count` lines of `depth` elements as panels of `held` lines: element k of line i of a panel comes at
// k * held + i. Lines are rows of A, or columns of B.
void pack(const double* data, std::ptrdiff_t line, std::ptrdiff_t step, int count, int depth, int held,
          double* panel) {
  for (int first = 0; first < count; first += held) {
    const int there = least(count - first, held);
    for (int k = 0; k < depth; ++k) {
      const double* from = data + first * line + k * step;
      for (int i = 0; i < there; ++i) panel[i] = from[i * line];
      for (int i = there; i < held; ++i) panel[i] = 0;
      panel += held;
    }
  }
}

// tile[kRowsHeld][kColumnsHeld] = panel of A times panel of B.
void multiply(int depth, const double* a, const double* b, double* tile) {
  Vector sum[kRowsHeld][kVectorsHeld] = {};
  for (int k = 0; k < depth; ++k) {
    Vector right[kVectorsHeld];
    for (int v = 0; v < kVectorsHeld; ++v) right[v] = load(b + v * kLanes);
    for (int i = 0; i < kRowsHeld; ++i)
      for (int v = 0; v < kVectorsHeld; ++v) sum[i][v] += a[i] * right[v];
    a += kRowsHeld;
    b += kColumnsHeld;
  }
  __builtin_memcpy(tile, sum, sizeof sum);
}

void add_tile(const double* tile, int rows, int columns, double* c, std::ptrdiff_t c_row) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) c[i * c_row + j] += tile[i * kColumnsHeld + j];
}

void add_block(int rows, int columns, int depth, const double* a, const double* b, double* c,
               std::ptrdiff_t c_row) {
  alignas(64) double tile[kRowsHeld * kColumnsHeld];
  for (int j = 0; j < columns; j += kColumnsHeld) {
    for (int i = 0; i < rows; i += kRowsHeld) {
      multiply(depth, a + i * depth, b + j * depth, tile);
      add_tile(tile, least(rows - i, kRowsHeld), least(columns - j, kColumnsHeld), c + i * c_row + j, c_row);
    }
  }
}

void add_product(const Product& p, double* workspace) {
  double* b_panels = workspace;
  double* a_panels = workspace + kDepth * kColumnBlock;
  for (std::int64_t j = 0; j < p.columns; j += kColumnBlock) {
    const int columns = least(p.columns - j, kColumnBlock);
    for (std::int64_t k = 0; k < p.depth; k += kDepth) {
      const int depth = least(p.depth - k, kDepth);
      pack(p.b.data + k * p.b.row + j * p.b.column, p.b.column, p.b.row, columns, depth, kColumnsHeld,
           b_panels);
      for (std::int64_t i = 0; i < p.rows; i += kRowBlock) {
        const int rows = least(p.rows - i, kRowBlock);
        pack(p.a.data + i * p.a.row + k * p.a.column, p.a.row, p.a.column, rows, depth, kRowsHeld, a_panels);
        add_block(rows, columns, depth, a_panels, b_panels, p.c + i * p.c_row + j, p.c_row);
      }
    }
  }
}

}  // namespace

#define EQUIPOISE_TEXT_OF(name) #name
#define EQUIPOISE_TEXT(name) EQUIPOISE_TEXT_OF(name)

extern const Float64Gemm kFloat64Gemm;
const Float64Gemm kFloat64Gemm = {EQUIPOISE_TEXT(EQUIPOISE_ISA), kDepth*(kColumnBlock + kRowBlock),
                                  add_product};

}  // namespace equipoise::execution::EQUIPOISE_ISA
