// Opens the CUDA module: beside the program (bin/../lib), else where the build put it.
#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "kernels/cuda/module.h"

namespace equipoise::kernels {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libequipoise_cuda.so";

std::vector<fs::path> places() {
  std::vector<fs::path> found;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) found.push_back(program.parent_path().parent_path() / "lib" / kFile);
  found.emplace_back(fs::path(EQUIPOISE_MODULE_DIR) / kFile);
  return found;
}

// The module's function, or null and the reason. The module stays open.
void* function(const char* name, std::string& reason) {
  for (const fs::path& place : places()) {
    if (!fs::exists(place)) continue;
    void* module = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      reason = dlerror();  // names the library that is missing
      return nullptr;
    }
    void* found = dlsym(module, name);
    if (found == nullptr) reason = dlerror();
    return found;
  }
  reason = std::string("this program was built without CUDA (") + kFile + " not found)";
  return nullptr;
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
