#include "kernels/backend.h"

#include <atomic>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels/modules.h"
#include "policies/base/module.h"

namespace equipoise::kernels {

void fill_rope_table(std::span<float> table, int head_dim, double base) {
  assert(head_dim > 0 && table.size() % static_cast<std::size_t>(head_dim) == 0);
  const std::size_t positions = table.size() / static_cast<std::size_t>(head_dim);
  for (std::size_t position = 0; position < positions; ++position) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = static_cast<double>(position) * std::pow(base, -2.0 * i / head_dim);
      const std::size_t at = position * static_cast<std::size_t>(head_dim) + 2 * static_cast<std::size_t>(i);
      table[at] = static_cast<float>(std::cos(angle));
      table[at + 1] = static_cast<float>(std::sin(angle));
    }
  }
}

Buffer::Buffer(Backend& backend, std::size_t bytes)
    : backend_(&backend), data_(backend.allocate(bytes)), bytes_(bytes) {}

Buffer::~Buffer() {
  if (backend_ != nullptr) backend_->release(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// --- The parts of the backend that come from modules (modules.h).

namespace {

std::atomic<const MpiModule*> opened_mpi = nullptr;

// Launchers announce themselves in the environment. Initialising MPI without one would only cost a user time.
bool started_by_a_launcher() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

void* cuda_function(const char* name, std::string& reason) {
  return module_symbol(cuda::kFile, name,
                       std::string("this program was built without CUDA (") + cuda::kFile + " not found)",
                       reason);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(std::string& reason, std::int64_t most_elements) {
  if (!started_by_a_launcher()) {
    reason = "not started by mpirun or srun";
    return nullptr;
  }
  if (opened_mpi == nullptr)  // MPI's own plugins search for its symbols
    opened_mpi = static_cast<const MpiModule*>(module_symbol(
        kMpiFile, kMpiModule, "this program was built without MPI", reason, ModuleSymbols::for_all));
  if (opened_mpi == nullptr) return nullptr;
  std::unique_ptr<Communicator> world;
  opened_mpi.load()->make_world(most_elements, world);
  return world;
}

void finish_mpi() {
  if (const MpiModule* const mpi = opened_mpi) mpi->finish();
}

void end_mpi_job(int exit_status) {
  if (const MpiModule* const mpi = opened_mpi) mpi->end_job(exit_status);
}

std::unique_ptr<Backend> make_cuda_backend(std::string& reason) {
  std::unique_ptr<Backend> backend;
  if (void* open = cuda_function(cuda::kOpenBackend, reason))
    reinterpret_cast<cuda::OpenBackend>(open)(&backend, &reason);
  return backend;
}

std::unique_ptr<Communicator> make_nccl_world(Communicator& host_world, bool bf16, std::string& reason) {
  std::unique_ptr<Communicator> world;
  if (void* open = cuda_function(cuda::kOpenNcclWorld, reason))
    reinterpret_cast<cuda::OpenNcclWorld>(open)(&world, &host_world, bf16, &reason);
  return world;
}

}  // namespace equipoise::kernels
