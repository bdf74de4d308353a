// Opens the CUDA module.
#include "kernels/cuda/module.h"
#include "policies/base/module.h"

namespace equipoise::kernels {
namespace {

constexpr const char* kFile = "libequipoise_cuda.so";

void* function(const char* name, std::string& reason) {
  return module_symbol(kFile, name,
                       std::string("this program was built without CUDA (") + kFile + " not found)", reason);
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(std::string& reason) {
  std::unique_ptr<Backend> backend;
  if (void* open = function(cuda::kOpenBackend, reason)) {
    reinterpret_cast<cuda::OpenBackend>(open)(&backend, &reason);
  }
  return backend;
}

std::unique_ptr<Communicator> make_nccl_world(Communicator& host_world, bool bf16, std::string& reason) {
  std::unique_ptr<Communicator> world;
  if (void* open = function(cuda::kOpenNcclWorld, reason)) {
    reinterpret_cast<cuda::OpenNcclWorld>(open)(&world, &host_world, bf16, &reason);
  }
  return world;
}

}  // namespace equipoise::kernels
