#include "policies/solver/cbc_module.h"

#include "policies/base/error.h"
#include "policies/base/module.h"

namespace equipoise {
namespace {

struct Module {
  cbc::Search search = nullptr;
  std::string reason;
};

const Module& module() {
  static const Module opened = [] {
    Module made;
    made.search = reinterpret_cast<cbc::Search>(module_symbol(
        cbc::kFile, cbc::kSearch,
        "this program was built without CBC; install the CBC development files (Debian: coinor-libcbc-dev) "
        "and configure again, or HiGHS, or use fixed-greedy or wlb",
        made.reason));
    return made;
  }();
  return opened;
}

}  // namespace

bool cbc_available() {
  return module().search != nullptr;
}

void search_with_cbc(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  if (!cbc_available()) throw UserError("solver: " + module().reason);
  const AssignmentProgram program(problem);
  cbc::Ended ended;
  module().search(program, limits, program.columns_of(result.bin_of), result.objective * program.scale,
                  ended);
  bool legal = true;
  if (!ended.columns.empty())
    legal = take_found(problem, program.assignment_of(ended.columns.data()), result);
  // A completed search proves the incumbent; one that was cut short proves its best open node.
  take_bound(legal && ended.proven ? result.objective : ended.best_possible / program.scale, result);
}

}  // namespace equipoise
