// `equipoise pack`: only the plan, with its metrics; one policy or several side by side.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/study/pack_request.h"

namespace equipoise {

struct PackCommandOptions : PackRequest {
  std::string trace;                  // a trace file, or the name of a published distribution
  std::vector<std::string> policies;  // --policy or --compare
  std::string column;
  bool compare = false;
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
};

// Throws UserError.
void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise
