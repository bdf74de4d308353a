// `equipoise check`: a study held against what it is expected to show.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

namespace equipoise {

struct CheckOptions {
  std::string file;
  std::string expect;            // equipoise.expectation/1
  std::vector<std::string> set;  // key.path=value
  std::string metric = "speedup";
  std::string tolerance = "0.5%";  // of the expected value: "0.5%" or 0.005
  bool update = false;             // write what was found into `expect`
  std::string junit;               // file for CI systems; empty: none
  int jobs = 0;                    // threads; 0: all cores
  double max_memory_GB = 0;        // 0: default_memory_limit()
  std::string format = "table";
  bool quiet = false;
};

// Runs the study and prints each policy's expected and found value. Returns 0 where nothing moved and where
// the file was updated, 1 where something did, 130 once `stop` is set. Throws UserError, also for a file that
// is there and is no expectation, --update or not.
int run_check_command(const CheckOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
