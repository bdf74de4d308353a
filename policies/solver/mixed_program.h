// A mixed integer program as columns and rows, for any solver, and its search by CBC or HiGHS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace equipoise {

enum class MilpSolver { automatic, cbc, highs };  // automatic: CBC if it is there, else HiGHS
inline constexpr std::string_view kMilpSolverNames[] = {"auto", "cbc", "highs"};

struct SolverLimits {
  double seconds = 10;                        // wall time, where there is no limit on nodes
  const std::atomic<bool>* cancel = nullptr;  // set by another thread: stop soon and keep what is found
  MilpSolver solver = MilpSolver::automatic;
  std::int64_t nodes = 0;  // > 0: of branch and bound, instead of the time
};

// Minimise the sum of column_cost * column. The first `continuous` columns are real, all others 0 or 1. Rows
// as compressed sparse rows.
struct MixedProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  std::vector<int> row_begin = {0}, column;
  std::vector<double> value;
  std::vector<double> column_lower, column_upper, column_cost;
  std::vector<double> row_lower, row_upper;
  int continuous = 0;

  [[nodiscard]] int columns() const { return static_cast<int>(column_cost.size()); }
  [[nodiscard]] int rows() const { return static_cast<int>(row_lower.size()); }

  // Into the row that the next close_row() ends.
  void add(int its_column, double its_value) {
    column.push_back(its_column);
    value.push_back(its_value);
  }
  void close_row(double lower, double upper) {
    row_begin.push_back(static_cast<int>(column.size()));
    row_lower.push_back(lower);
    row_upper.push_back(upper);
  }
};

// Where a search ended.
struct SearchEnd {
  std::vector<double> columns;  // of the best found; empty: none
  bool proven = false;          // nothing is better than it
  double best_possible = 0;     // nothing is better than this
};

bool solver_available(MilpSolver solver = MilpSolver::automatic);

// From a feasible start of that objective on. Throws UserError where the solver is not there.
SearchEnd search_program(const MixedProgram& program, const SolverLimits& limits,
                         const std::vector<double>& start, double objective);

// CBC is a module (policies/base/module.h) of one function, with a C name but C++ arguments: module and
// program come from one build.
namespace cbc {

using Search = void (*)(const MixedProgram&, const SolverLimits&, const std::vector<double>& start,
                        double objective, SearchEnd&);
inline constexpr const char* kFile = "libequipoise_cbc.so";
inline constexpr const char* kSearch = "equipoise_search_with_cbc";

}  // namespace cbc

// --- The integer program behind the solver baselines: every document to one bin, the heaviest bin as light
// as can be. With several steps the bins are dealt to them heaviest first, `bins_a_step` each, and what
// counts is the sum over steps of each step's heaviest bin:
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

// Weight of each bin; sums in document order, so equal assignments have equal bits.
std::vector<double> bin_weights(const AssignmentProblem&, const BinOf&);
std::vector<std::int64_t> bin_tokens(const AssignmentProblem&, const BinOf&);

double heaviest_bin(const AssignmentProblem&, const BinOf&);

// What is minimised: with the bins dealt to steps heaviest first, the sum of each step's heaviest. With one
// step that is the heaviest bin.
double sum_over_steps(const AssignmentProblem&, const BinOf&);

// No assignment has a smaller sum over steps.
double lower_bound(const AssignmentProblem&);

bool within_capacity(const AssignmentProblem&, const BinOf&);

// Moves and swaps single documents between the heaviest bin and the others, best improvement first, until
// none lightens it; ties go to the lowest document, then the lowest partner. Keeps capacities.
// O(documents) a candidate bin, a few dozen rounds in practice, at most 10,000.
void improve_by_swaps(const AssignmentProblem&, BinOf&);

// The same for the sum over steps, from the heaviest bin of every step: best improvement first, no bin above
// heaviest_allowed. O(documents * bins) a document of those bins and round; a fixed number of evaluations in
// all, so that it depends on nothing but its input.
void improve_steps_by_swaps(const AssignmentProblem&, BinOf&);

struct AssignmentResult {
  BinOf bin_of;  // the best found; never worse than the start
  double objective = 0;
  double bound = 0;      // proven: no assignment is better
  double seconds = 0;    // measured
  bool optimal = false;  // objective == bound within 1e-9
};

// Solves from a feasible start. Which bin is which carries no meaning in the result. Throws UserError where
// the solver is not there (solver_available() tells).
AssignmentResult solve_assignment(const AssignmentProblem&, const BinOf& start, const SolverLimits&);

// --- The assignment program as columns and rows.
//
// Bins of a step are interchangeable, and so are steps, so every solution has many copies; without help
// branch and bound visits them all. Symmetry breaking: documents sorted heaviest first; the k-th (from 0) may
// use bin b of step s only if s + b <= k. Any assignment can be renamed to obey that (name steps, and the
// bins in them, by their first document), the warm start included. z_0 starts at the heaviest document, and
// their sum at the bound max(mean bins, lone documents), which is mostly what the search ends up proving.
// Weights are scaled to a mean bin of 1000, so that absolute tolerances mean the same for tokens squared and
// for seconds.

class AssignmentProgram : public MixedProgram {
 public:
  explicit AssignmentProgram(const AssignmentProblem& problem);

  // Minimise the sum of the first columns, z_s. Rows: one a document (= 1), then two a bin (weight - z <= 0,
  // tokens <= capacity), then, with several steps, one for the sum of z.
  double scale = 1;  // of the objective

  // An assignment as column values, its steps and bins renamed so that it obeys the symmetry breaking.
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
