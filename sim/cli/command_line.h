// The command line, as CLI11 describes it. Each group of commands has a file that declares its options
// (grammar_study.cpp, grammar_plan.cpp, grammar_profile.cpp); what is declared for all commands is here. The
// help, the manual page and the completion of shells are made from CLI11's own description (manual.cpp).
//
//   const auto options = std::make_shared<CheckOptions>();
//   CLI::App& check = add_command(program, "check", "Compare a study's ...", "Example: ...");
//   check.add_option("file", options->file, "Study file (JSON)")->required();
//   check.callback([options, &status] { status = run_check_command(*options, ...); });
//
// A file that includes CLI11 takes 7 s of CPU to compile, so only the files named above include it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace equipoise {

// Adds a command to the program, or to a group such as `trace`. `footer` ends its --help with an example.
CLI::App& add_command(CLI::App& group, const std::string& name, const std::string& summary,
                      const std::string& footer);

// A size such as 4K or 128M. Empty text leaves the variable as it is.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::int64_t& variable,
                      const std::string& help);
// Sizes separated by commas.
CLI::Option* add_lengths(CLI::App& command, const std::string& name, std::vector<std::int64_t>& variable,
                         const std::string& help);
CLI::Option* add_format_option(CLI::App& command, Format& format,
                               const std::string& help = "table, json or csv");
// --max-memory-GB, of every command in which a typed number decides an allocation.
CLI::Option* add_memory_option(CLI::App& command, MemoryLimit& limit);
// --jobs. 0 means all cores, as without the option.
CLI::Option* add_jobs_option(CLI::App& command, int& jobs,
                             const std::string& help = "Threads; all cores by default");

// Refuses numbers below `least`.
CLI::Option* at_least(double least, CLI::Option* option);

// Puts the option into the group of those that have an effect only with the option `other`. A note says so
// where `other` is not typed, and --help shows the group under its name.
CLI::Option* only_with(const std::string& other, CLI::Option* option);

// Parses the words and runs the command that they name. Returns the exit status. Throws UserError in one
// line that names the command, what was found and what is allowed.
int parse_and_run(int argc, char** argv);

}  // namespace equipoise
