// The CUDA kernels against their references: runs where there is a GPU, and says so where there is none.
#include <doctest/doctest.h>

#include "kernels/checks.h"

using namespace equipoise::kernels;

TEST_CASE("every CUDA op equals its float64 reference") {
  std::string reason;
  const auto backend = make_cuda_backend(reason);
  if (backend == nullptr) {
    MESSAGE("not run: " << reason);
    return;
  }
  for (const CheckResult& result : check_all(*backend, 17)) {
    CAPTURE(result.op);
    CAPTURE(result.tensor);
    CAPTURE(result.shape);
    CAPTURE(result.error);
    CHECK(result.passed());
  }
}
