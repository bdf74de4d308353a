// `equipoise validate`: compares a study's real run, or somebody's log, with its simulation, op by op.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/real_ranks.h"

namespace equipoise {

struct ValidateOptions : RankOptions {
  ValidateOptions() { steps = 20, repetitions = 3; }
  double minutes = 3;         // limit for profiling; 0 uses the study's profile as it is
  int calibration_steps = 4;  // steps of each plan on other documents, to learn in-step times of ops
  std::string measured;       // a log that replaces the run
};

// Returns 0, or 1 if a stated limit is broken. `arguments` are the program's, for the ranks.
int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log);

}  // namespace equipoise
