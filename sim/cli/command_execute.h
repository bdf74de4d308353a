// `equipoise execute`: the plans of a study, run for real and compared with every slice alone.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/real_ranks.h"

namespace equipoise {

struct ExecuteOptions : RankOptions {
  std::string normalizer = "token";
  std::string dump;  // folder; empty: none
};

// Starts the ranks where no launcher has. Prints, on rank 0, the comparison and the measured steps. Returns
// 0, or 1 where a plan is not equivalent. `arguments`: those of the program, for the ranks.
int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log);

}  // namespace equipoise
