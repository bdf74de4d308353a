// Options of the commands that take a study: study, check, verify, tune, merge, export, report, execute and
// validate.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace equipoise {

// Adds the commands. Each stores its exit status in `status`. `arguments` are the program's, for the ranks
// that execute and validate start.
void add_study_commands(CLI::App& program, const std::vector<std::string>& arguments, int& status);

}  // namespace equipoise
