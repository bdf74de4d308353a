// Run under mpirun: checks the MPI collectives on every rank. Exit 1 if any rank saw a wrong result.
#include <cstdio>

#include "kernels/checks.h"

using namespace equipoise::kernels;

int main() {
  std::string reason;
  const auto world = make_mpi_world(reason);
  if (world == nullptr) {
    std::fprintf(stderr, "no MPI world: %s\n", reason.c_str());
    return 1;
  }
  float failed = 0;
  const auto halves = world->split(world->rank() % 2, world->rank());
  // This world takes an MPI call to move 1000 elements at most: messages of 4096 are cut into five.
  const auto cut = make_mpi_world(reason, 1000);
  const auto cut_halves = cut->split(world->rank() % 2, world->rank());
  for (Communicator* group : {world.get(), halves.get(), cut.get(), cut_halves.get()}) {
    for (const CheckResult& result : check_collectives(*group, 5)) {
      if (result.passed()) continue;
      failed += 1;
      std::fprintf(stderr, "rank %d: %s on %s: error %g\n", world->rank(), result.op.c_str(),
                   result.shape.c_str(), result.error);
    }
  }
  float all_failed = 0;
  world->all_reduce(&failed, &all_failed, 1);
  if (world->rank() == 0)
    std::printf("%d ranks, %g wrong results\n", world->size(), static_cast<double>(all_failed));
  return all_failed > 0 ? 1 : 0;
}
