// The assignment program as columns and rows, for any MILP solver.
//
// Bins are interchangeable, so every solution has bins! copies; without help branch and bound visits them
// all. Symmetry breaking: documents sorted heaviest first, document i may use bins 0..i only. Any assignment
// can be renamed to obey that (name bins by their first document), the warm start included. z (column 0)
// starts at the bound max(mean bin, heaviest document), which is mostly what the search ends up proving.
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

  // Minimise column 0; all others are 0 or 1. Rows as compressed sparse rows: one a document (= 1), then two
  // a bin (weight - z <= 0, tokens <= capacity).
  std::vector<int> row_begin = {0}, column;
  std::vector<double> value;
  std::vector<double> column_lower, column_upper, column_cost;
  std::vector<double> row_lower, row_upper;
  double scale = 1;  // of the objective

  [[nodiscard]] int columns() const { return static_cast<int>(column_cost.size()); }
  [[nodiscard]] int rows() const { return static_cast<int>(row_lower.size()); }

  // An assignment as column values, its bins renamed so that it obeys the symmetry breaking.
  [[nodiscard]] std::vector<double> columns_of(const BinOf& bin_of, double objective) const;
  [[nodiscard]] BinOf assignment_of(const double* values) const;

 private:
  [[nodiscard]] int bins_of(std::size_t k) const;
  void close_row(double lower, double upper);

  const AssignmentProblem& problem_;
  std::vector<std::size_t> order_;  // documents, heaviest first
  std::vector<int> first_column_;   // of document order_[k]
};

// One solver each: improves `result` (incumbent and bound) from result.bin_of on. The incumbent is priced
// again from the assignment, not read from the solver.
void search_with_cbc(const AssignmentProblem&, const SolverLimits&, AssignmentResult& result);
void search_with_highs(const AssignmentProblem&, const SolverLimits&, AssignmentResult& result);
bool cbc_available();
bool highs_available();
const std::string& highs_fault();  // for the user, where it is not available

// Takes what a solver found, if it is better, and the bound that it proved.
void take_found(const AssignmentProblem&, const BinOf& found, AssignmentResult& result);
void take_bound(double bound, AssignmentResult& result);

}  // namespace equipoise
