// `equipoise explain`: the meaning, allowed values and origin of a study's key, a result's column or a word
// of `equipoise list`.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

// Without a word it prints the kinds of words. Throws UserError with the nearest names.
void run_explain_command(const std::string& word, Format format, std::ostream& out);

}  // namespace equipoise
