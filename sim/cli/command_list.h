// `equipoise list`: what there is, one line each.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

// `what`: policies, schedules, models, profiles, frameworks or traces. Throws UserError for anything else.
void run_list_command(const std::string& what, Format format, std::ostream& out);

// The first words of those lines: what may be typed as the name of one.
std::vector<std::string> listed_names(const std::string& what);

}  // namespace equipoise
