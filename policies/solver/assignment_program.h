// The assignment program as columns and rows, for any MILP solver.
//
// Bins of a step are interchangeable, and so are steps, so every solution has many copies; without help
// branch and bound visits them all. Symmetry breaking: documents sorted heaviest first; the k-th (from 0) may
// use bin b of step s only if s + b <= k. Any assignment can be renamed to obey that (name steps, and the
// bins in them, by their first document), the warm start included. z_0 starts at the heaviest document, and
// their sum at the bound max(mean bins, lone documents), which is mostly what the search ends up proving.
// Weights are scaled to a mean bin of 1000, so that absolute tolerances mean the same for tokens squared and
// for seconds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "policies/solver/assignment.h"

namespace equipoise {

class AssignmentProgram {
 public:
  explicit AssignmentProgram(const AssignmentProblem& problem);

  // Minimise the sum of the first steps() columns, z_s; all others are 0 or 1. Rows as compressed sparse
  // rows: one a document (= 1), then two a bin (weight - z <= 0, tokens <= capacity), then, with several
  // steps, one for the sum of z.
  std::vector<int> row_begin = {0}, column;
  std::vector<double> value;
  std::vector<double> column_lower, column_upper, column_cost;
  std::vector<double> row_lower, row_upper;
  double scale = 1;  // of the objective

  [[nodiscard]] int columns() const { return static_cast<int>(column_cost.size()); }
  [[nodiscard]] int rows() const { return static_cast<int>(row_lower.size()); }
  [[nodiscard]] int steps() const { return static_cast<int>(problem_.steps()); }

  // An assignment as column values, its steps and bins renamed so that it obeys the symmetry breaking.
  [[nodiscard]] std::vector<double> columns_of(const BinOf& bin_of) const;
  [[nodiscard]] BinOf assignment_of(const double* values) const;

 private:
  [[nodiscard]] int column_of(std::size_t k, std::uint32_t bin) const;
  void add_columns();
  void add_rows();
  void close_row(double lower, double upper);

  const AssignmentProblem& problem_;
  std::vector<std::size_t> order_;      // documents, heaviest first
  std::vector<int> first_column_;       // of document order_[k]
  std::vector<std::uint32_t> bins_of_;  // bin of a column, from first_column_[0] on
};

// One solver each: improves `result` (incumbent and bound) from result.bin_of on. The incumbent is priced
// again from the assignment, not read from the solver.
void search_with_cbc(const AssignmentProblem&, const SolverLimits&, AssignmentResult& result);
void search_with_highs(const AssignmentProblem&, const SolverLimits&, AssignmentResult& result);
bool cbc_available();
bool highs_available();
const std::string& highs_fault();  // for the user, where it is not available

// Takes what a solver found, if it is better. False if it breaks a limit by more than rounding: then a
// solver's claim of optimality is not about this problem.
bool take_found(const AssignmentProblem&, const BinOf& found, AssignmentResult& result);
// Takes the bound that a solver proved.
void take_bound(double bound, AssignmentResult& result);

// CBC is a module (policies/base/module.h) of one function, with a C name but C++ arguments: module and
// program come from one build.
namespace cbc {

// Where a search ended.
struct Ended {
  std::vector<double> columns;  // of the best found; empty: none
  bool proven = false;          // nothing is better than it
  double best_possible = 0;     // else: of the open nodes
};

// From a start of that objective on, all in the program's scale.
using Search = void (*)(const AssignmentProgram&, const SolverLimits&, const std::vector<double>& start,
                        double objective, Ended&);
inline constexpr const char* kFile = "libequipoise_cbc.so";
inline constexpr const char* kSearch = "equipoise_search_with_cbc";

}  // namespace cbc

}  // namespace equipoise
