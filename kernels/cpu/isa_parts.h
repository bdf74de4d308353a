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
void rms_norm(const Rows& shape, float epsilon, const float* x, const float* weight, float* out,
              float* inverse_rms);
void rms_norm_backward(const Rows& shape, const float* x, const float* weight, const float* inverse_rms,
                       const float* dout, float* dx, float* dweight);
void rope(const RopeShape& shape, bool inverse, const std::int32_t* positions, const float* table, float* x);
void swiglu(const Rows& shape, const float* gate_up, float* out);
void swiglu_backward(const Rows& shape, const float* gate_up, const float* dout, float* dgate_up);
void adam_step(const AdamStep& step, const float* gradient, float* master, float* mean, float* square,
               float* weights);
void residual_add(std::int64_t elements, const float* x, const float* residual, float* out);
void cross_entropy(const Rows& shape, std::int64_t first_token, const float* logits,
                   const std::int32_t* targets, float* log_sum, float* target_logit);
void cross_entropy_backward(const Rows& shape, std::int64_t first_token, const float* logits,
                            const std::int32_t* targets, const float* log_sum, const float* row_weight,
                            float* dlogits);

}  // namespace equipoise::kernels::EQUIPOISE_ISA
