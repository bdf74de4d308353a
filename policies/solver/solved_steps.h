// What the two solver policies share: the integer programs for one set of bins, and their reports in the
// plan.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/solver/assignment.h"

namespace equipoise {

using Bins = std::vector<std::vector<Slice>>;

// Solves twice, within the limits of `options` together: first the lightest heaviest bin; then, where the
// bins belong to several steps (problem.bins_a_step), the least sum over steps of each step's heaviest bin
// among the assignments with that maximum. Both start from the best of `starts` (maximum first, then the
// sum), improved by swaps, and never return anything worse. One full-window document fixes the maximum and
// makes every assignment optimal for the first; the second tells them apart.
//
// Bins come back heaviest first, stable in the order of their first document, so bin j belongs to step
// j div bins_a_step; documents in a bin in the order given. Reports into `plan` as `step`.
Bins solve_bins(std::span<const Slice> documents, const AssignmentProblem& problem,
                std::span<const BinOf> starts, const PackOptions& options, std::size_t step, Plan& plan);

// Notes how many of the programs were proven optimal, and the largest gap left.
void note_programs(Plan& plan);

Plan plan_fixed_solver(const PackingProblem& problem);
Plan plan_varlen_solver(const PackingProblem& problem);

}  // namespace equipoise
