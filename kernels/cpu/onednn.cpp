// oneDNN's matrix product. This file is the whole module.
#include <dnnl.h>
#include <omp.h>

#include <stdexcept>

#include "kernels/modules.h"

namespace equipoise::kernels {

static void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  omp_set_num_threads(1);  // only affects the calling thread, as a rank is one thread
  const dnnl_status_t status =
      dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n, shape.k,
                 1.0F, a, shape.transpose_a ? shape.m : shape.k, b, shape.transpose_b ? shape.k : shape.n,
                 shape.accumulate ? 1.0F : 0.0F, c, shape.n);
  if (status != dnnl_success)
    throw std::runtime_error("dnnl_sgemm failed with status " + std::to_string(status));
}

static void version(std::string& text) {
  const dnnl_version_t* const v = dnnl_version();
  text =
      "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

}  // namespace equipoise::kernels

extern "C" const equipoise::kernels::OneDnnModule equipoise_onednn_module;
const equipoise::kernels::OneDnnModule equipoise_onednn_module{equipoise::kernels::gemm,
                                                               equipoise::kernels::version};
