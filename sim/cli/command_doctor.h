// `equipoise doctor`: what this machine has, and whether the program works on it.
#pragma once

#include <iosfwd>
#include <string_view>

#include "sim/cli/commands.h"

namespace equipoise {

// Checks the build, memory, disk, shipped files, devices, solvers, and a small study from end to end. Returns
// 1 if something failed; what is merely absent is named. `version` is the program's.
int run_doctor_command(Format format, std::string_view version, std::ostream& out);

}  // namespace equipoise
