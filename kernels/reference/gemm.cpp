#include "kernels/reference/reference.h"

namespace equipoise::kernels::reference {

Values gemm(const GemmShape& shape, const Values& a, const Values& b, const Values& c_before) {
  Values c(static_cast<std::size_t>(shape.m * shape.n), 0.0);
  if (shape.accumulate) c = c_before;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t k = 0; k < shape.k; ++k) {
      const double left = shape.transpose_a ? a[index(k, shape.m, i)] : a[index(i, shape.k, k)];
      for (std::int64_t j = 0; j < shape.n; ++j) {
        c[index(i, shape.n, j)] +=
            left * (shape.transpose_b ? b[index(j, shape.k, k)] : b[index(k, shape.n, j)]);
      }
    }
  }
  return c;
}

}  // namespace equipoise::kernels::reference
