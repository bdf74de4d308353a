// `equipoise explain`: what a word of a study's keys, a result's columns or `equipoise list` means, what it
// may be, and where it comes from.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

// Without a word it prints which kinds there are. Throws UserError with the nearest names.
void run_explain_command(const std::string& word, Format format, std::ostream& out);

}  // namespace equipoise
