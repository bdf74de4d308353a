// The CPU kernels that exist once per instruction set, as a table of functions, and the choice among the
// tables at run time: one portable program that is fast on AVX-512, on AVX2 and correct on anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace equipoise::kernels {

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
  // Floats of workspace for pieces of at most so many queries and keys.
  std::size_t (*attention_workspace)(const AttentionShape&, std::int64_t queries, std::int64_t keys);
  void (*attention_forward)(const AttentionInputs&, const Piece&, float* workspace, float* out,
                            float* log_sum);
  // Adds to the gradients.
  void (*attention_backward)(const AttentionBackwardInputs&, const Piece&, float* workspace, float* dq,
                             float* dk, float* dv);
  void (*gemm)(const GemmShape&, const float* a, const float* b, float* c);  // where no library is linked
  void (*rms_norm)(const Rows&, float epsilon, const float* x, const float* weight, float* out,
                   float* inverse_rms);
  void (*rms_norm_backward)(const Rows&, const float* x, const float* weight, const float* inverse_rms,
                            const float* dout, float* dx, float* dweight);
  void (*rope)(const RopeShape&, bool inverse, const std::int32_t* positions, const float* table, float* x);
  void (*swiglu)(const Rows&, const float* gate_up, float* out);
  void (*swiglu_backward)(const Rows&, const float* gate_up, const float* dout, float* dgate_up);
  void (*adam_step)(const AdamStep&, const float* gradient, float* master, float* mean, float* square,
                    float* weights);
  void (*residual_add)(std::int64_t elements, const float* x, const float* residual, float* out);
  void (*cross_entropy)(const Rows&, std::int64_t first_token, const float* logits,
                        const std::int32_t* targets, float* log_sum, float* target_logit);
  void (*cross_entropy_backward)(const Rows&, std::int64_t first_token, const float* logits,
                                 const std::int32_t* targets, const float* log_sum, const float* row_weight,
                                 float* dlogits);
};

// The tables this processor can run, best first; never empty.
struct CpuKernelChoices {
  const CpuKernels* tables[3] = {};
  int count = 0;
};
CpuKernelChoices cpu_kernel_choices();

// The best one.
const CpuKernels& cpu_kernels();

}  // namespace equipoise::kernels
