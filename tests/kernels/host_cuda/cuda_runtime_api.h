// The language and the runtime of CUDA as far as our row kernels use them, on the host: it comes before
// CUDA's header of this name. What is no C++ (launches, shared memory of a size given at the launch, the
// timer) is rewritten by translate.cmake first.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/kernels/host_cuda/launch.h"

#define __global__
#define __device__
#define threadIdx host_cuda::now.thread
#define blockIdx host_cuda::now.block
#define gridDim host_cuda::now.grid

// The call's line tells one barrier from another.
inline void __syncthreads(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  host_cuda::wait({host_cuda::Barrier::block, file, line});
}
inline int __syncthreads_or(int mine, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return static_cast<int>(host_cuda::any_of_block(mine != 0, {host_cuda::Barrier::block_vote, file, line}));
}
inline void __syncwarp(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  host_cuda::wait({host_cuda::Barrier::warp, file, line});
}
inline float __shfl_xor_sync(unsigned int lanes, float value, int step, int line = __builtin_LINE(),
                             const char* file = __builtin_FILE()) {
  return host_cuda::exchange(lanes, value, step, {host_cuda::Barrier::shuffle, file, line});
}
inline void atomicAdd(float* to, float value) {
  host_cuda::atomic_add(to, value);
}

// A GPU computes it by its unit for powers of two, after one rounded product.
inline float __expf(float x) {
  return exp2f(x * 1.44269504F);
}
inline float rsqrtf(float x) {
  return 1.0F / sqrtf(x);
}

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorLaunchFailure };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

// The error of the launches since the last call.
inline cudaError_t cudaGetLastError() {
  return host_cuda::fault().empty() ? cudaSuccess : cudaErrorLaunchFailure;
}
inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? host_cuda::take_fault()
                                          : "what the device does not have was asked for";
}
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int bytes) {
  return host_cuda::allow_shared(reinterpret_cast<void (*)()>(kernel), bytes) ? cudaSuccess
                                                                              : cudaErrorInvalidValue;
}
