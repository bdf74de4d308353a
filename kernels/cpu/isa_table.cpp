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
                             run_row_op};

}  // namespace equipoise::kernels::EQUIPOISE_ISA
