// `equipoise pack`: only the plan, with its metrics; one policy or several side by side.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

struct PackCommandOptions {
  std::string trace;                                 // a trace file, or the name of a published distribution
  std::vector<std::string> policies;                 // --policy or --compare
  nlohmann::json batch = nlohmann::json::object();   // keys of a study's `batch`
  nlohmann::json policy = nlohmann::json::object();  // keys of a study's policy entry
  int lanes = 1;
  int context = 1;
  std::string model;    // built-in name or path of a config.json; empty: none
  std::string profile;  // empty: none
  std::string cost;     // empty: profiled with a model and a profile, else quadratic
  std::string column;
  std::uint64_t seed = 0;
  bool compare = false;
  double max_memory_GB = 0;  // 0: default_memory_limit()
  Format format = Format::table;
};

// Throws UserError.
void run_pack_command(const PackCommandOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise
