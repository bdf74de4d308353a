#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/solver/assignment.h"

namespace equipoise {

// What the solver policies share: options, the integer programs for one set of bins, and their reports in the
// plan.

struct SolverOptions {
  double time_limit_seconds = 10;  // a step
  std::int64_t node_limit = 0;     // a step; > 0: instead of the time limit
  MilpSolver solver = MilpSolver::automatic;
  const std::atomic<bool>* cancel =
      nullptr;  // another thread sets it; a solver then stops and keeps its best solution
};
inline constexpr PackParameter node_limit_parameter() {
  PackParameter nodes = parameter::integer<&SolverOptions::node_limit>(
      "node_limit", 1, INT32_MAX,
      "nodes of branch and bound a step, instead of time_limit; the plan is the same on every machine");
  nodes.excludes = "time_limit";
  return nodes;
}
inline constexpr PackParameter kSolver[] = {
    parameter::choice<&SolverOptions::solver>(
        "solver", kMilpSolverNames,
        "which one, auto by default; auto: CBC if it is there, else HiGHS; cbc: CBC; highs: HiGHS"),
    parameter::number<&SolverOptions::time_limit_seconds>("time_limit", 0.001, 1e6, "seconds a step"),
    node_limit_parameter()};

using Bins = std::vector<std::vector<Slice>>;

// Adds a note on how many programs were proven optimal, and on the largest remaining gap.
void note_programs(Plan& plan);

Plan plan_fixed_solver(const PackingProblem& problem);
Plan plan_varlen_solver(const PackingProblem& problem);

// Skrull's joint program (skrull_solver.cpp). Throws UserError where a step is too large for it.
Plan plan_skrull_solver(const PackingProblem& problem);
// A micro-batch holds fewer than C*N tokens, and so does a document.
std::int64_t skrull_solver_hard_limit(const PackOptions& options);

}  // namespace equipoise
