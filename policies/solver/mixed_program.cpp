#include "policies/solver/mixed_program.h"

#include "policies/base/error.h"
#include "policies/base/module.h"

namespace equipoise {
namespace {

struct CbcModule {
  cbc::Search search = nullptr;
  std::string reason;
};

const CbcModule& cbc_module() {
  static const CbcModule opened = [] {
    CbcModule made;
    made.search = reinterpret_cast<cbc::Search>(module_symbol(
        cbc::kFile, cbc::kSearch,
        "this program was built without CBC; install the CBC development files (Debian: coinor-libcbc-dev) "
        "and configure again, or HiGHS, or use a policy that needs no solver",
        made.reason));
    return made;
  }();
  return opened;
}

bool cbc_available() {
  return cbc_module().search != nullptr;
}

}  // namespace

bool solver_available(MilpSolver solver) {
  if (solver == MilpSolver::cbc) return cbc_available();
  if (solver == MilpSolver::highs) return highs_available();
  return cbc_available() || highs_available();
}

SearchEnd search_program(const MixedProgram& program, const SolverLimits& limits,
                         const std::vector<double>& start, double objective) {
  const bool choose_highs = limits.solver == MilpSolver::highs ||
                            (limits.solver == MilpSolver::automatic && !cbc_available() && highs_available());
  if (choose_highs) {
    if (!highs_available()) throw UserError(highs_fault());
    return search_with_highs(program, limits, start);
  }
  if (!cbc_available()) throw UserError("solver: " + cbc_module().reason);
  SearchEnd end;
  cbc_module().search(program, limits, start, objective, end);
  return end;
}

}  // namespace equipoise
