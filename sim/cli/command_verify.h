// `equipoise verify`: compares a saved summary with its receipt, its inputs as they are now, and a new run.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct VerifyOptions : SimulationOptions {
  std::string file;  // summary.json
  std::string version;
};
// Returns 0 if all holds and 1 if something differs. Throws UserError if there is no receipt, or an input is
// gone.
int run_verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

void print_checks(const std::vector<Check>& checks, Format format, std::ostream& out);

}  // namespace equipoise
