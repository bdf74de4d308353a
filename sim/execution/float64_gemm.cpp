#include "sim/execution/float64_gemm.h"

namespace equipoise::execution {

// Defined in float64_gemm_isa.cpp, which is compiled once per instruction set.
#ifdef __x86_64__
namespace avx512 {
extern const Float64Gemm kFloat64Gemm;
}
namespace avx2 {
extern const Float64Gemm kFloat64Gemm;
}
#endif
namespace baseline {
extern const Float64Gemm kFloat64Gemm;
}

std::vector<Float64Gemm> float64_gemms() {
  std::vector<Float64Gemm> choices;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) choices.push_back(avx512::kFloat64Gemm);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) choices.push_back(avx2::kFloat64Gemm);
#endif
  choices.push_back(baseline::kFloat64Gemm);
  return choices;
}

void add_product(const Product& product) {
  static const Float64Gemm best = float64_gemms().front();
  thread_local std::vector<double> workspace(best.workspace);
  best.add_product(product, workspace.data());
}

}  // namespace equipoise::execution
