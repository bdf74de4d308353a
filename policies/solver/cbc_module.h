// CBC is a module (policies/base/module.h) of one function, with a C name but C++ arguments: module and
// program come from one build.
#pragma once

#include <vector>

#include "policies/solver/assignment_program.h"

namespace equipoise::cbc {

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

}  // namespace equipoise::cbc
