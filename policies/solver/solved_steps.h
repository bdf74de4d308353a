// What the two solver policies share: one integer program for one set of bins, and its report in the plan.
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

// Improves `start` by swaps, then by the solver within options.time_limit_seconds, and reports into `plan` as
// `step`. Bins come back ordered by their first document, documents in a bin in the order given.
Bins solve_bins(std::span<const Slice> documents, const AssignmentProblem& problem, BinOf start,
                const PackOptions& options, std::size_t step, Plan& plan);

Plan plan_fixed_solver(const PackingProblem& problem);
Plan plan_varlen_solver(const PackingProblem& problem);

}  // namespace equipoise
