// MPI is a module (policies/base/module.h): what it gives, under a C name.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/collectives.h"

namespace equipoise::kernels {

struct MpiModule {
  void (*make_world)(std::int64_t most_elements, std::unique_ptr<Communicator>& world);
  void (*finish)();
  void (*end_job)(int exit_status);
};
inline constexpr const char* kMpiFile = "libequipoise_mpi.so";
inline constexpr const char* kMpiModule = "equipoise_mpi_module";

}  // namespace equipoise::kernels
