// One instruction set's kernels as a table.
#include "kernels/cpu/isa_parts.h"

#define EQUIPOISE_TEXT_OF(name) #name
#define EQUIPOISE_TEXT(name) EQUIPOISE_TEXT_OF(name)

namespace equipoise::kernels::EQUIPOISE_ISA {

extern const CpuKernels kKernels;
const CpuKernels kKernels = {EQUIPOISE_TEXT(EQUIPOISE_ISA),
                             attention_workspace,
                             attention_forward,
                             attention_backward,
                             gemm,
                             rms_norm,
                             rms_norm_backward,
                             rope,
                             swiglu,
                             swiglu_backward,
                             adam_step,
                             residual_add,
                             cross_entropy,
                             cross_entropy_backward};

}  // namespace equipoise::kernels::EQUIPOISE_ISA
