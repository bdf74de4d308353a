// Stands in for cbc.cpp in a program that was built without CBC.
#include "policies/base/error.h"
#include "policies/solver/assignment_program.h"

namespace equipoise {

bool cbc_available() {
  return false;
}

void search_with_cbc(const AssignmentProblem&, const SolverLimits&, AssignmentResult&) {
  throw UserError(
      "solver: this program was built without CBC; install the CBC development files (Debian: "
      "coinor-libcbc-dev) and configure again, or HiGHS, or use fixed-greedy or wlb");
}

}  // namespace equipoise
