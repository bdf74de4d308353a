// `equipoise execute`: runs the plans of a study for real and compares each with its slices run alone.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/real_ranks.h"

namespace equipoise {

struct ExecuteOptions : RankOptions {
  std::string normalizer = "token";
  std::string dump;  // folder; none if empty
};

// Starts the ranks unless a launcher has. Prints the comparison and the measured steps on rank 0. Returns 0,
// or 1 if a plan is not equivalent. `arguments` are the program's, for the ranks.
int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log);

}  // namespace equipoise
