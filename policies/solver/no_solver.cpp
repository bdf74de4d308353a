// Stands in for cbc.cpp in a program that was built without CBC.
#include "policies/error.h"
#include "policies/solver/assignment.h"

namespace equipoise {

bool solver_available() {
  return false;
}

AssignmentResult solve_assignment(const AssignmentProblem&, const BinOf&, const SolverLimits&) {
  throw UserError(
      "policy: fixed-solver and varlen-solver need CBC, and this program was built without it; install the "
      "CBC "
      "development files (Debian: coinor-libcbc-dev) and configure again, or use fixed-greedy or wlb");
}

}  // namespace equipoise
