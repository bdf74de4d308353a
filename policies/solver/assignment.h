// The integer program of the solver baselines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "policies/solver/mixed_program.h"

namespace equipoise {

// The integer program assigns every document to one bin and minimises the
// heaviest bin. With several steps, these take the bins heaviest first, `bins_a_step` each, and the objective
// is the sum over steps of each step's heaviest bin:
//
//   min sum_s z_s   such that   sum_j x_ij = 1 for every document i,
//                               sum_i weight_i x_ij <= z_s   for every bin j of step s,
//                               sum_i tokens_i x_ij <= capacity for every bin j,   z_s <= heaviest_allowed.

struct AssignmentProblem {
  std::vector<double> weight;        // per document, >= 0
  std::vector<std::int64_t> tokens;  // per document
  std::size_t bins = 1;
  std::int64_t capacity = 0;    // tokens of a bin
  std::size_t bins_a_step = 0;  // 0: all bins are one step
  double heaviest_allowed = std::numeric_limits<double>::infinity();

  [[nodiscard]] std::size_t step_bins() const { return bins_a_step == 0 ? bins : bins_a_step; }
  [[nodiscard]] std::size_t steps() const { return (bins + step_bins() - 1) / step_bins(); }
};

using BinOf = std::vector<std::uint32_t>;  // bin of each document

// The weight of each bin, summed in document order so that equal assignments give equal bits.
std::vector<double> bin_weights(const AssignmentProblem&, const BinOf&);
std::vector<std::int64_t> bin_tokens(const AssignmentProblem&, const BinOf&);

double heaviest_bin(const AssignmentProblem&, const BinOf&);

// The objective: the sum of each step's heaviest bin, where steps take the bins heaviest first. With one step
// it is the heaviest bin.
double sum_over_steps(const AssignmentProblem&, const BinOf&);

// A lower bound on the sum over steps of any assignment.
double lower_bound(const AssignmentProblem&);

bool within_capacity(const AssignmentProblem&, const BinOf&);

inline constexpr std::int64_t kMostEvaluations = 4'000'000;

// Moves and swaps single documents between the heaviest bin and the others, best improvement first, until
// none reduces it. Ties go to the lowest document, then the lowest partner. Capacities hold. Takes
// O(documents) per candidate bin and a few dozen rounds in practice. The number of evaluations is limited, so
// that the result depends only on the input.
void improve_by_swaps(const AssignmentProblem&, BinOf&, std::int64_t evaluations = kMostEvaluations);

// The same for the sum over steps, with exchanges from the heaviest bin of every step and no bin above
// heaviest_allowed. An evaluation takes O(bins).
void improve_steps_by_swaps(const AssignmentProblem&, BinOf&, std::int64_t evaluations = kMostEvaluations);

struct AssignmentResult {
  BinOf bin_of;  // the best assignment found, never worse than the start
  double objective = 0;
  double bound = 0;       // proven lower bound
  double seconds = 0;     // measured
  bool optimal = false;   // objective == bound within 1e-9
  bool searched = false;  // whether the solver ran
};

// The rows of the program, and about as many elements as its matrix has.
constexpr double program_rows(const AssignmentProblem& problem) {
  return static_cast<double>(problem.weight.size() + 2 * problem.bins);
}
constexpr double program_elements(const AssignmentProblem& problem) {
  return 3 * static_cast<double>(problem.weight.size()) * static_cast<double>(problem.bins);
}

// Solves from a feasible start. The numbering of bins in the result is arbitrary. Throws UserError where the
// solver is not installed (see solver_available()).
AssignmentResult solve_assignment(const AssignmentProblem&, const BinOf& start, const SolverLimits&);

// The assignment program as columns and rows.
//
// Bins of a step are interchangeable, and so are steps, so every solution has many copies that branch and
// bound would visit. To break the symmetry, documents are sorted heaviest first, and the k-th (from 0) may
// use bin b of step s only if s + b <= k. Any assignment, including the warm start, can be renamed to satisfy
// that: steps, and the bins in them, are numbered by their first document. z_0 is at least the heaviest
// document, and the sum of all z is at least max(mean bins, lone documents), which is usually the bound that
// the search proves. Weights are scaled to a mean bin of 1000, so that absolute tolerances mean the same for
// tokens squared and for seconds.

class AssignmentProgram : public MixedProgram {
 public:
  explicit AssignmentProgram(const AssignmentProblem& problem);

  // Minimises the sum of the first columns, z_s. There is one row per document (= 1), two rows per bin
  // (weight - z <= 0, tokens <= capacity), and with several steps one row for the sum of z.
  double scale = 1;  // factor from weights to the program's objective

  // An assignment as column values, with steps and bins renamed to satisfy the symmetry breaking.
  [[nodiscard]] std::vector<double> columns_of(const BinOf& bin_of) const;
  [[nodiscard]] BinOf assignment_of(const double* values) const;

 private:
  [[nodiscard]] int column_of(std::size_t k, std::uint32_t bin) const;
  void add_columns();
  void add_rows();

  const AssignmentProblem& problem_;
  std::vector<std::uint32_t> order_;    // documents, heaviest first
  std::vector<int> first_column_;       // of document order_[k]
  std::vector<std::uint32_t> bins_of_;  // bin of a column, from first_column_[0] on
};

}  // namespace equipoise
