#include "policies/solver/solved_steps.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace equipoise {
namespace {

// Maximum first, then the sum over steps.
bool better(const AssignmentProblem& problem, const BinOf& a, const BinOf& b) {
  const double most_a = heaviest_bin(problem, a);
  const double most_b = heaviest_bin(problem, b);
  return most_a != most_b ? most_a < most_b : sum_over_steps(problem, a) < sum_over_steps(problem, b);
}

SolverReport report_of(const AssignmentResult& result, std::size_t step, bool over_steps) {
  return {static_cast<int>(step), over_steps, result.objective, result.bound, result.seconds, result.optimal};
}

BinOf solve(const AssignmentProblem& problem, std::span<const BinOf> starts, const PackOptions& options,
            std::size_t step, Plan& plan) {
  BinOf best = starts.front();
  for (const BinOf& start : starts.subspan(1))
    if (better(problem, start, best)) best = start;
  BinOf swapped = best;
  improve_by_swaps(problem, swapped);  // lowers the maximum, and may raise the sum where it cannot
  if (better(problem, swapped, best)) best = std::move(swapped);

  AssignmentProblem largest = problem;
  largest.bins_a_step = 0;
  const SolverOptions& own = options.of<SolverOptions>();
  SolverLimits limits{own.time_limit_seconds, own.cancel, own.solver, own.node_limit};
  const bool second = problem.steps() > 1;
  if (second) limits.seconds /= 2;
  const AssignmentResult first = solve_assignment(largest, best, limits);
  plan.solver.push_back(report_of(first, step, false));
  if (better(problem, first.bin_of, best)) best = first.bin_of;
  if (!second) return best;

  AssignmentProblem over_steps = problem;
  over_steps.heaviest_allowed = heaviest_bin(problem, best);
  improve_steps_by_swaps(over_steps, best);
  limits.seconds = std::max(0.0, own.time_limit_seconds - first.seconds);
  AssignmentResult result = solve_assignment(over_steps, best, limits);
  plan.solver.push_back(report_of(result, step, true));
  return std::move(result.bin_of);
}

}  // namespace

void note_programs(Plan& plan) {
  std::size_t optimal = 0;
  double gap = 0;
  for (const SolverReport& report : plan.solver) {
    optimal += report.optimal ? 1 : 0;
    gap = std::max(gap, report.gap());
  }
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.2f%%", 100 * gap);
  plan.notes.push_back("integer programs proven optimal: " + std::to_string(optimal) + " of " +
                       std::to_string(plan.solver.size()) + ", largest gap " + percent);
}

Bins solve_bins(std::span<const Slice> documents, const AssignmentProblem& problem,
                std::span<const BinOf> starts, const PackOptions& options, std::size_t step, Plan& plan) {
  Bins bins(problem.bins);
  if (documents.empty()) return bins;
  const BinOf bin_of = solve(problem, starts, options, step, plan);

  std::vector<std::size_t> first(problem.bins, std::numeric_limits<std::size_t>::max());
  for (std::size_t i = documents.size(); i-- > 0;) first[bin_of[i]] = i;
  const std::vector<double> weights = bin_weights(problem, bin_of);
  std::vector<std::size_t> order(problem.bins);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : first[a] < first[b];
  });
  std::vector<std::size_t> place(problem.bins);
  for (std::size_t p = 0; p < order.size(); ++p) place[order[p]] = p;
  for (std::size_t i = 0; i < documents.size(); ++i) bins[place[bin_of[i]]].push_back(documents[i]);
  return bins;
}

}  // namespace equipoise
