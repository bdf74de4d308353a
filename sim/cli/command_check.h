// `equipoise check`: compares a study with its expected results.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct CheckOptions : SimulationOptions {
  std::string file;
  std::vector<std::string> set;  // key.path=value
  std::string expect;            // equipoise.expectation/1
  std::vector<std::string> metrics = {"speedup", "step_seconds"};
  // Shares of the expected value, "0.5%" or 0.005: one per metric, or one for all. Empty: each metric's
  // default.
  std::vector<std::string> tolerances;
  bool only_worse = false;  // whether a metric may be better than expected
  bool update = false;      // write what was found into `expect`
  std::string junit;        // file for CI systems; none if empty
};

// Runs the study and prints each policy's expected and found value. Returns 0 if nothing moved or the file
// was updated, 1 if something moved, and 130 once `stop` is set. An existing file that is no expectation is
// refused, even with --update.
int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
