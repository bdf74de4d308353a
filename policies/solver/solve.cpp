#include <chrono>

#include "policies/base/error.h"
#include "policies/solver/assignment_program.h"

namespace equipoise {
namespace {

constexpr double kOptimalGap = 1e-9;

void search(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  const bool choose_highs = limits.solver == MilpSolver::highs ||
                            (limits.solver == MilpSolver::automatic && !cbc_available() && highs_available());
  if (!choose_highs) return search_with_cbc(problem, limits, result);
  if (!highs_available()) throw UserError(highs_fault());
  search_with_highs(problem, limits, result);
}

}  // namespace

bool solver_available(MilpSolver solver) {
  if (solver == MilpSolver::cbc) return cbc_available();
  if (solver == MilpSolver::highs) return highs_available();
  return cbc_available() || highs_available();
}

AssignmentResult solve_assignment(const AssignmentProblem& problem, const BinOf& start,
                                  const SolverLimits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  AssignmentResult result{start, sum_over_steps(problem, start), lower_bound(problem), 0, false};
  const auto closed = [&] { return result.objective <= result.bound * (1 + kOptimalGap); };
  const bool cancelled = limits.cancel != nullptr && limits.cancel->load(std::memory_order_relaxed);
  if (!solver_available(limits.solver) ||
      (!closed() && !cancelled && (limits.nodes > 0 || limits.seconds > 0)))
    search(problem, limits, result);
  result.optimal = closed();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace equipoise
