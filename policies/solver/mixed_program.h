// A mixed integer program as columns and rows, for any solver, and its search by CBC or HiGHS.
#pragma once

#include <atomic>
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

}  // namespace equipoise
