// The CPU kernels that exist once per instruction set, as tables of functions, and the choice of a table at
// run time. So one portable program is fast on AVX-512 and AVX2, and correct on any processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels {

class Backend;

struct AttentionInputs {
  AttentionShape shape;
  const float* query = nullptr;
  const float* key = nullptr;
  const float* value = nullptr;
};

struct AttentionBackwardInputs {
  AttentionInputs in;
  const float* out = nullptr;
  const float* log_sum = nullptr;
  const float* out_gradient = nullptr;
};

struct CpuKernels {
  const char* isa;
  // Floats of workspace for pieces with at most so many queries and keys.
  std::size_t (*attention_workspace)(const AttentionShape&, std::int64_t queries, std::int64_t keys);
  void (*attention_forward)(const AttentionInputs&, const Piece&, float* workspace, float* out,
                            float* log_sum);
  // Adds to the gradients.
  void (*attention_backward)(const AttentionBackwardInputs&, const Piece&, float* workspace, float* dq,
                             float* dk, float* dv);
  void (*gemm)(const GemmShape&, const float* a, const float* b, float* c);  // used if no library is linked
  // Runs a row op by its place in kRowOps; `call` has its arguments, the alternative of RowCall there.
  void (*row_op)(std::size_t op, const void* call);
};

// The tables this processor can run, best first; never empty.
struct CpuKernelChoices {
  const CpuKernels* tables[3] = {};
  int count = 0;
};
CpuKernelChoices cpu_kernel_choices();

// The best table.
const CpuKernels& cpu_kernels();

// The CPU backend on one of the tables; tests try each that the processor can run.
std::unique_ptr<Backend> make_cpu_backend(const CpuKernels& kernels);

}  // namespace equipoise::kernels

#ifdef EQUIPOISE_ISA
// The kernels of this instruction set, in a file that is compiled once per set; cpu/tile_gemm.cpp collects
// them into a CpuKernels.
namespace equipoise::kernels::EQUIPOISE_ISA {

std::size_t attention_workspace(const AttentionShape& shape, std::int64_t queries, std::int64_t keys);
void attention_forward(const AttentionInputs& in, const Piece& piece, float* workspace, float* out,
                       float* log_sum);
void attention_backward(const AttentionBackwardInputs& all, const Piece& piece, float* workspace, float* dq,
                        float* dk, float* dv);
void gemm(const GemmShape& shape, const float* a, const float* b, float* c);
void run_row_op(std::size_t op, const void* call);

}  // namespace equipoise::kernels::EQUIPOISE_ISA
#endif
