// Our own kernels: row-wise and elementwise ops on bf16 with f32 arithmetic, one pass over memory each.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ops.h"

namespace equipoise::kernels::cuda {

using bf16 = __nv_bfloat16;

void launch_empty();
void launch_spin(double seconds);
void launch_rms_norm(const Rows& shape, float epsilon, const bf16* x, const bf16* weight, bf16* out,
                     float* inverse_rms);
void launch_rms_norm_backward(const Rows& shape, const bf16* x, const bf16* weight, const float* inverse_rms,
                              const bf16* dout, bf16* dx, float* dweight, int sms);
void launch_rope(const RopeShape& shape, bool inverse, const std::int32_t* positions, const float* table,
                 bf16* x);
void launch_swiglu(const Rows& shape, const bf16* gate_up, bf16* out);
void launch_swiglu_backward(const Rows& shape, const bf16* gate_up, const bf16* dout, bf16* dgate_up);
void launch_residual_add(std::int64_t elements, const bf16* x, const bf16* residual, bf16* out);
void launch_adam_step(const AdamStep& step, const bf16* gradient, float* master, float* mean, float* square,
                      bf16* weights);
void launch_cross_entropy(const Rows& shape, std::int64_t first_token, const bf16* logits,
                          const std::int32_t* targets, float* log_sum, float* target_logit);
void launch_cross_entropy_backward(const Rows& shape, std::int64_t first_token, const bf16* logits,
                                   const std::int32_t* targets, const float* log_sum, const float* row_weight,
                                   bf16* dlogits);

}  // namespace equipoise::kernels::cuda
