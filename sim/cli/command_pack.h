// `equipoise pack`: only the plan of a policy, or of several side by side, with its metrics.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/pack_request.h"

namespace equipoise {

struct PackCommandOptions : PackRequest {
  std::string trace;                  // a trace file, or the name of a published distribution
  std::vector<std::string> policies;  // --policy or --compare
  std::string column;
  bool compare = false;
  MemoryLimit memory = default_memory_limit();
  Format format = Format::table;
};

void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise
