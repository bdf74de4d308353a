// `equipoise execute`: the plans of a study, run for real on ranks of this machine, and held against every
// slice alone.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace equipoise {

struct ExecuteOptions {
  std::string file;
  std::vector<std::string> set;  // key.path=value
  std::string policy;            // label; empty: all
  int steps = 1;                 // of each plan
  int repetitions = 1;           // how often they are timed
  std::string device = "cpu";
  bool replay = false;  // one rank after the other on one device
  std::string normalizer = "token";
  std::uint64_t seed = 7;
  double op_timeout_seconds = 20;  // a rank that computes one op for so long, while others wait, hangs
  std::string dump;                // folder; empty: none
  std::string out;                 // folder for execution.json
  std::string format = "table";
  bool quiet = false;
};

// Starts the ranks where no launcher has. Prints, on rank 0, the comparison and the measured steps. Returns
// 0, or 1 where a plan is not equivalent. Throws UserError. `arguments`: those of the program, for the ranks.
int run_execute_command(const ExecuteOptions& options, const std::vector<std::string>& arguments,
                        std::ostream& out, std::ostream& log);

}  // namespace equipoise
