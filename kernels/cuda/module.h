// The CUDA backend is a shared library that the program opens when a GPU is asked for: linked in, CUDA's
// libraries (some hundred MB) would cost every start of the program a third of a second. These are its two
// entry points; they have C names, but C++ arguments: module and program come from one build.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/collectives.h"

namespace equipoise::kernels::cuda {

std::unique_ptr<Backend> open_backend(std::string& reason);
std::unique_ptr<Communicator> open_nccl_world(Communicator& host_world, bool bf16, std::string& reason);

using OpenBackend = void (*)(std::unique_ptr<Backend>*, std::string* reason);
using OpenNcclWorld = void (*)(std::unique_ptr<Communicator>*, Communicator* host, bool bf16,
                               std::string* reason);
inline constexpr const char* kOpenBackend = "equipoise_open_cuda_backend";
inline constexpr const char* kOpenNcclWorld = "equipoise_open_nccl_world";

}  // namespace equipoise::kernels::cuda
