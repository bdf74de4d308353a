// Failures of CUDA libraries as exceptions that say which call failed and why.
#pragma once

#include <cuda_runtime_api.h>

#include <new>
#include <stdexcept>
#include <string>

namespace equipoise::kernels::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the error is not sticky: forget it
    throw std::bad_alloc();
  }
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

}  // namespace equipoise::kernels::cuda
