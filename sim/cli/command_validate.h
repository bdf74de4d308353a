// `equipoise validate`: a study run for real and simulated, compared op by op; or a log of somebody's run.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace equipoise {

struct ValidateOptions {
  std::string file;
  std::vector<std::string> set;
  std::string policy;  // label; empty: all
  int steps = 20;      // of each plan
  int repetitions = 3;
  std::string device = "cpu";
  bool replay = false;
  double minutes = 3;    // of profiling at most; 0: the study's profile as it is
  int calibration_steps = 4;  // of each plan on other documents, for how long ops take inside a step
  std::string measured;  // a log instead of a run
  std::uint64_t seed = 7;
  double op_timeout_seconds = 20;  // a rank that computes one op for so long, while others wait, hangs
  std::string out;                 // folder for validation.json, .txt, .svg and the timelines
  std::string format = "table";
  bool quiet = false;
};

// Returns 0, or 1 where a stated limit is broken. Throws UserError. `arguments`: those of the program, for
// the ranks.
int run_validate_command(const ValidateOptions& options, const std::vector<std::string>& arguments,
                         std::ostream& out, std::ostream& log);

}  // namespace equipoise
