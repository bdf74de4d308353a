// Our own kernels: row-wise and elementwise ops on bf16 with f32 arithmetic, one pass over memory each.
#pragma once

#include <cuda_bf16.h>

#include "kernels/row_ops.h"

namespace equipoise::kernels::cuda {

using bf16 = __nv_bfloat16;

void launch_empty();
void launch_spin(double seconds);
// Of token_rows.cu.
void launch_op(const Embedding& call, int sms);
void launch_op(const EmbeddingBackward& call, int sms);
void launch_op(const AttentionMerge& call, int sms);
// A row op; `sms` is how many the device has.
void launch(const RowCall& call, int sms);

}  // namespace equipoise::kernels::cuda
