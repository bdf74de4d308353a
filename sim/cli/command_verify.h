// `equipoise verify`: a saved summary compared with its receipt, its inputs as they are now, and a new run.
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
// 0 where all holds, 1 where something differs. Throws UserError where there is no receipt, or an input is
// gone.
int run_verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

void print_checks(const std::vector<Check>& checks, Format format, std::ostream& out);

}  // namespace equipoise
