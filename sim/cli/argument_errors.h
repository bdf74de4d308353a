// What the parser's own errors leave out: which command, what would do, and the nearest known name.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace equipoise {

// Refuses an unknown command, of `equipoise` or of a group such as `trace`, by its name. Throws UserError.
void check_command_names(const CLI::App& app, int argc, char** argv);

// Makes every option that takes a number say which kind it takes; a sign before a count and nan are none.
void check_numbers(CLI::App& app);

// Refuses --out "" of all commands: it would be taken for no --out.
void check_outputs(CLI::App& app);

// One line for a parse that failed.
std::string explained(const CLI::App& app, const CLI::ParseError& error);

}  // namespace equipoise
