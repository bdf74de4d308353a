// `equipoise validate`: a study run for real and simulated, compared op by op; or a log of somebody's run.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/real_ranks.h"

namespace equipoise {

struct ValidateOptions : RankOptions {
  ValidateOptions() { steps = 20, repetitions = 3; }
  double minutes = 3;         // of profiling at most; 0: the study's profile as it is
  int calibration_steps = 4;  // of each plan on other documents, for how long ops take inside a step
  std::string measured;       // a log instead of a run
};

// Returns 0, or 1 where a stated limit is broken. `arguments`: those of the program, for the ranks.
int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log);

}  // namespace equipoise
