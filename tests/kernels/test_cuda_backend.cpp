// The CUDA kernels against their references: runs where there is a GPU, and says so where there is none.
#include <doctest/doctest.h>

#include "kernels/checks.h"
#include "tests/kernels/ring_check.h"

using namespace equipoise::kernels;

TEST_CASE("every CUDA op equals its float64 reference") {
  std::string reason;
  const auto backend = make_cuda_backend(reason);
  if (backend == nullptr) {
    MESSAGE("not run: " << reason);
    return;
  }
  std::uint64_t seed = 17;
  for (auto check : {check_attention, check_ring_attention, check_gemm, check_rows})
    for (const CheckResult& result : check(*backend, seed++)) {
      CAPTURE(result.op);
      CAPTURE(result.tensor);
      CAPTURE(result.shape);
      CAPTURE(result.error);
      CHECK(result.passed());
    }
}
