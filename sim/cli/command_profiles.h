// `equipoise profiles`: what is shipped, and what one profile holds.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

// One line a profile.
void profiles_command(Format format, std::ostream& out);

// Facts with their sources, tables with provenance, both ranges and errors; measured against predicted where
// the profile holds its own samples. `json` prints the file.
void profiles_show_command(const std::string& profile, Format format, std::ostream& out);

}  // namespace equipoise
