// What the module computes besides attention: matrix products by cuBLASLt, and our own kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels::cuda {

using bf16 = __nv_bfloat16;

// Turns a failure of the CUDA runtime into an exception that names the call and the reason.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // clears an error that is not sticky
    throw std::bad_alloc();
  }
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

// Our own kernels: row-wise and elementwise ops on bf16 with f32 arithmetic, each with one pass over memory.
void launch_empty();
void launch_spin(double seconds);
// The launches below are in token_rows.cu.
void launch_op(const Embedding& call, int sms);
void launch_op(const EmbeddingBackward& call, int sms);
void launch_op(const AttentionMerge& call, int sms);
// Launches a row op; `sms` is the device's number of SMs.
void launch(const RowCall& call, int sms);

// GEMM through cuBLASLt: bf16 in and out, f32 sums. The library's heuristic proposes algorithms; the first
// call of a shape times them and the best is kept.
class GemmLt {
 public:
  GemmLt();
  ~GemmLt();
  GemmLt(const GemmLt&) = delete;
  GemmLt& operator=(const GemmLt&) = delete;

  void operator()(const GemmShape& shape, const void* a, const void* b, void* c);
  static std::string version();  // "13.1.0"

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace equipoise::kernels::cuda
