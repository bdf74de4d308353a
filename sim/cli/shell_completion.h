// What the Tab key completes: commands, options, and the values of options that take one of a few names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/cli/command_text.h"

namespace equipoise {

// Values by option ("--schedule") or by a positional of a command ("list what").
using NamesOfOption = std::map<std::string, std::vector<std::string>>;

// A script for bash, zsh (which runs bash's) or fish. Throws UserError for another shell.
std::string shell_completion(const CommandText& program, const NamesOfOption& names,
                             const std::string& shell);

}  // namespace equipoise
