// The libraries that the program opens when it first needs them (policies/base/module.h), by their functions.
//
// If they were linked, CUDA's libraries (some hundred MB) would slow every start of the program by a third of
// a second, and MPI and oneDNN may be missing. A module's names are C names and its arguments C++, because
// module and program come from one build.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/collectives.h"

namespace equipoise::kernels {

// oneDNN's matrix product (cpu/onednn.cpp).
struct OneDnnModule {
  void (*gemm)(const GemmShape& shape, const float* a, const float* b, float* c);
  void (*version)(std::string& text);
};
inline constexpr const char* kOneDnnFile = "libequipoise_onednn.so";
inline constexpr const char* kOneDnnModule = "equipoise_onednn_module";

// Ranks as processes (comm/mpi.cpp).
struct MpiModule {
  void (*make_world)(std::int64_t most_elements, std::unique_ptr<Communicator>& world);
  void (*finish)();
  void (*end_job)(int exit_status);
};
inline constexpr const char* kMpiFile = "libequipoise_mpi.so";
inline constexpr const char* kMpiModule = "equipoise_mpi_module";

// The CUDA backend (cuda/backend_cuda.cpp) and NCCL (cuda/nccl.cpp).
namespace cuda {

using OpenBackend = void (*)(std::unique_ptr<Backend>*, std::string* reason);
using OpenNcclWorld = void (*)(std::unique_ptr<Communicator>*, Communicator* host, bool bf16,
                               std::string* reason);
inline constexpr const char* kFile = "libequipoise_cuda.so";
inline constexpr const char* kOpenBackend = "equipoise_open_cuda_backend";
inline constexpr const char* kOpenNcclWorld = "equipoise_open_nccl_world";

}  // namespace cuda
}  // namespace equipoise::kernels
