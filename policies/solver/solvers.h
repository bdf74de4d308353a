#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
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
  double time_limit_seconds = 0;  // a step; 0: not given
  std::int64_t node_limit = 0;    // a step; > 0: instead of the time limit
  MilpSolver solver = MilpSolver::automatic;
  const std::atomic<bool>* cancel =
      nullptr;  // another thread sets it; a solver then stops and keeps its best solution
};
inline constexpr PackParameter node_limit_parameter() {
  PackParameter nodes = parameter::integer<&SolverOptions::node_limit>(
      "node_limit", 1, INT32_MAX,
      "nodes of branch and bound per step, instead of time_limit; the plan is the same on every machine");
  nodes.excludes = "time_limit";
  return nodes;
}
inline constexpr PackParameter kSolver[] = {
    parameter::choice<&SolverOptions::solver>(
        "solver", kMilpSolverNames,
        "which one, auto by default; auto: CBC if it is there, else HiGHS; cbc: CBC; highs: HiGHS"),
    parameter::number<&SolverOptions::time_limit_seconds>(
        "time_limit", 0.001, 1e6, "seconds per step; by default counted work is limited"),
    node_limit_parameter()};

using Bins = std::vector<std::vector<Slice>>;

// The work of a plan's searches, which is limited where the user limits neither time nor nodes. It is counted
// and not timed, so that a plan is the same on every machine: one unit is a nanosecond of one core, more or
// less, as fitted to CBC on programs of 10^3 to 10^5 columns. The searches that are still to come share what
// is left evenly. A program whose root alone is beyond its share is not searched, and the best that moves and
// swaps found is used.
class SolverWork {
 public:
  SolverWork(const SolverOptions& options, std::size_t searches)
      : options_(options), searches_(std::max<std::size_t>(1, searches)) {}

  // Evaluations of `work` units each that a local search may do, at most `most`. They are taken off.
  std::int64_t evaluations(std::int64_t most, double work);
  // The limits of the next search, with `seconds` of its step left. Where they allow neither nodes nor time,
  // the program should not be made.
  SolverLimits next(double rows, double elements, double seconds);
  // How that search ended: whether it had to run, and what it proved.
  void ended(bool searched, bool proven);
  // Adds the notes of all searches: how many programs were proven optimal, the largest remaining gap, and
  // what the limit ended.
  void note_on(Plan& plan) const;

 private:
  [[nodiscard]] bool counts() const { return options_.time_limit_seconds <= 0 && options_.node_limit <= 0; }

  const SolverOptions& options_;
  std::size_t searches_;       // that are still to come
  double left_ = 25e9;         // units
  double root_ = 0, all_ = 0;  // units of the present search: of its root, and all that it may do
  std::size_t stopped_ = 0, unsearched_ = 0;
};

Plan plan_fixed_solver(const PackingProblem& problem);
Plan plan_varlen_solver(const PackingProblem& problem);

}  // namespace equipoise
