// A mixed integer program as columns and rows for any solver, and its solution by CBC or HiGHS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace equipoise {

enum class MilpSolver { automatic, cbc, highs };  // automatic: CBC if it is installed, else HiGHS
inline constexpr std::string_view kMilpSolverNames[] = {"auto", "cbc", "highs"};

struct SolverLimits {
  double seconds = 10;  // wall time, where there is no limit on nodes
  const std::atomic<bool>* cancel =
      nullptr;  // another thread sets it; the search then stops soon and keeps its best solution
  MilpSolver solver = MilpSolver::automatic;
  std::int64_t nodes = 0;  // > 0: limit on the nodes of branch and bound, instead of the time
};

// Minimise the sum of column_cost * column. The first `continuous` columns are real, all others 0 or 1. Rows
// are stored in compressed sparse form.
struct MixedProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  std::vector<int> row_begin = {0}, column;
  std::vector<double> value;
  std::vector<double> column_lower, column_upper, column_cost;
  std::vector<double> row_lower, row_upper;
  int continuous = 0;

  [[nodiscard]] int columns() const { return static_cast<int>(column_cost.size()); }
  [[nodiscard]] int rows() const { return static_cast<int>(row_lower.size()); }

  // Adds to the row that the next close_row() ends.
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

// The result of a search.
struct SearchEnd {
  std::vector<double> columns;  // of the best solution; empty: none was found
  bool proven = false;          // whether no solution is better
  double best_possible = 0;     // lower bound on the objective
};

bool solver_available(MilpSolver solver = MilpSolver::automatic);

// Searches from a feasible start with that objective. Throws UserError where the solver is not installed.
SearchEnd search_program(const MixedProgram& program, const SolverLimits& limits,
                         const std::vector<double>& start, double objective);

// CBC is a module (policies/base/module.h) with one function. Its name is C, but its arguments are C++, since
// module and program come from one build.
namespace cbc {

using Search = void (*)(const MixedProgram&, const SolverLimits&, const std::vector<double>& start,
                        double objective, SearchEnd&);
inline constexpr const char* kFile = "libequipoise_cbc.so";
inline constexpr const char* kSearch = "equipoise_search_with_cbc";

}  // namespace cbc

}  // namespace equipoise
