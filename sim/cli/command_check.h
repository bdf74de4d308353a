// `equipoise check`: a study compared with what it is expected to show.
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
  // Shares of the expected value, "0.5%" or 0.005: one for each metric, or one for all; empty: each metric's.
  std::vector<std::string> tolerances;
  bool only_worse = false;  // a metric that is better than expected does not fail
  bool update = false;      // write what was found into `expect`
  std::string junit;        // file for CI systems; empty: none
};

// Runs the study and prints each policy's expected and found value. Returns 0 where nothing moved and where
// the file was updated, 1 where something did, 130 once `stop` is set. A file that is there and is no
// expectation is refused, --update or not.
int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
