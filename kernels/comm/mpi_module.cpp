// Opens MPI where a launcher started the program.
#include "kernels/comm/mpi_module.h"

#include <atomic>
#include <cstdlib>

#include "policies/base/module.h"

namespace equipoise::kernels {
namespace {

std::atomic<const MpiModule*> opened_mpi = nullptr;

// Launchers say so in the environment; initialising MPI without one would only cost a user time.
bool started_by_a_launcher() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(std::string& reason, std::int64_t most_elements) {
  if (!started_by_a_launcher()) {
    reason = "not started by mpirun or srun";
    return nullptr;
  }
  if (opened_mpi == nullptr)  // MPI's own plugins look for its symbols
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

}  // namespace equipoise::kernels
