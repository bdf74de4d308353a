// Declarations of the kernels of one instruction set; cpu/isa_table.cpp gathers them into a CpuKernels.
#pragma once

#include "kernels/cpu/isa.h"

namespace equipoise::kernels::EQUIPOISE_ISA {

std::size_t attention_workspace(const AttentionShape& shape, std::int64_t queries, std::int64_t keys);
void attention_forward(const AttentionInputs& in, const Piece& piece, float* workspace, float* out,
                       float* log_sum);
void attention_backward(const AttentionBackwardInputs& all, const Piece& piece, float* workspace, float* dq,
                        float* dk, float* dv);
void gemm(const GemmShape& shape, const float* a, const float* b, float* c);
void run_row_op(std::size_t op, const void* call);

}  // namespace equipoise::kernels::EQUIPOISE_ISA
