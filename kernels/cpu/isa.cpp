#include "kernels/cpu/isa.h"

namespace equipoise::kernels {

#ifdef EQUIPOISE_X86
namespace avx512 {
extern const CpuKernels kKernels;
}
namespace avx2 {
extern const CpuKernels kKernels;
}
#endif
namespace baseline {
extern const CpuKernels kKernels;
}

CpuKernelChoices cpu_kernel_choices() {
  CpuKernelChoices choices;
#ifdef EQUIPOISE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) choices.tables[choices.count++] = &avx512::kKernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    choices.tables[choices.count++] = &avx2::kKernels;
  }
#endif
  choices.tables[choices.count++] = &baseline::kKernels;
  return choices;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& best = *cpu_kernel_choices().tables[0];
  return best;
}

}  // namespace equipoise::kernels
