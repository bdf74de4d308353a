#include "policies/solver/solved_steps.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace equipoise {

Bins solve_bins(std::span<const Slice> documents, const AssignmentProblem& problem, BinOf start,
                const PackOptions& options, std::size_t step, Plan& plan) {
  Bins bins(problem.bins);
  if (documents.empty()) return bins;
  improve_by_swaps(problem, start);
  const AssignmentResult result =
      solve_assignment(problem, start, {options.time_limit_seconds, options.cancel, options.solver});
  plan.solver.push_back(
      {static_cast<int>(step), result.objective, result.bound, result.seconds, result.optimal});

  std::vector<std::size_t> first(problem.bins, std::numeric_limits<std::size_t>::max());
  for (std::size_t i = documents.size(); i-- > 0;) first[result.bin_of[i]] = i;
  std::vector<std::size_t> order(problem.bins);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return first[a] < first[b]; });
  std::vector<std::size_t> place(problem.bins);
  for (std::size_t p = 0; p < order.size(); ++p) place[order[p]] = p;
  for (std::size_t i = 0; i < documents.size(); ++i) bins[place[result.bin_of[i]]].push_back(documents[i]);
  return bins;
}

}  // namespace equipoise
