// `equipoise list`: what there is, one line each.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

struct ListedName {
  std::string name, kind, from, summary;
  nlohmann::ordered_json options = {};  // of a policy: its keys, as the JSON Schema has them, with defaults
};

// `what`: policies, schedules, models, profiles, frameworks or traces. Throws UserError for anything else.
std::vector<ListedName> list_of(const std::string& what);
std::vector<std::string> listed_names(const std::string& what);

// Prints one of those lists, or the JSON Schema of studies where `what` is schema.
void run_list_command(const std::string& what, Format format, std::ostream& out);

}  // namespace equipoise
