// The integer program behind the solver baselines: every document to one bin, least heaviest bin.
//
//   min z   such that   sum_j x_ij = 1 for every document i,
//                       sum_i weight_i x_ij <= z   and   sum_i tokens_i x_ij <= capacity for every bin j.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/options.h"

namespace equipoise {

struct AssignmentProblem {
  std::vector<double> weight;        // per document, >= 0
  std::vector<std::int64_t> tokens;  // per document
  std::size_t bins = 1;
  std::int64_t capacity = 0;  // tokens of a bin
};

using BinOf = std::vector<std::uint32_t>;  // bin of each document

// Weight of the heaviest bin; sums in document order, so equal assignments have equal bits.
double heaviest_bin(const AssignmentProblem&, const BinOf&);

// No assignment is lighter than the mean bin or than the heaviest document.
double lower_bound(const AssignmentProblem&);

bool within_capacity(const AssignmentProblem&, const BinOf&);

// Moves and swaps single documents between the heaviest bin and the others, best improvement first, until
// none lightens it; ties go to the lowest document, then the lowest partner. Keeps capacities.
// O(documents) a candidate bin, a few dozen rounds in practice, at most 10,000.
void improve_by_swaps(const AssignmentProblem&, BinOf&);

// Each document, heaviest first, to the lightest bin with room. False if one finds none.
bool assign_greedily(const AssignmentProblem&, BinOf&);

struct SolverLimits {
  double seconds = 10;                        // wall time
  const std::atomic<bool>* cancel = nullptr;  // set by another thread: stop soon and keep what is found
  MilpSolver solver = MilpSolver::automatic;
};

struct AssignmentResult {
  BinOf bin_of;  // the best found; never worse than the start
  double objective = 0;
  double bound = 0;      // proven: no assignment is lighter
  double seconds = 0;    // measured
  bool optimal = false;  // objective == bound within 1e-9
};

// Solves from a feasible start. Which bin is which carries no meaning in the result. Throws UserError where
// the solver is not there (solver_available() tells).
AssignmentResult solve_assignment(const AssignmentProblem&, const BinOf& start, const SolverLimits&);

bool solver_available(MilpSolver solver = MilpSolver::automatic);

}  // namespace equipoise
