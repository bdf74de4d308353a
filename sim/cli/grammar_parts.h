// The parts of the grammar, by theme, so that no file of it grows past a few screens.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace equipoise {

void add_study(CLI::App& app, int& status);  // the exit status of the command that ran
void add_check(CLI::App& app, int& status);
void add_tune(CLI::App& app, int& status);
void add_merge(CLI::App& app, int& status);
void add_pack(CLI::App& app);
void add_list(CLI::App& app);
void add_trace(CLI::App& app);
void add_profiles(CLI::App& app);
void add_fit(CLI::App& app);
void add_predict(CLI::App& app);
void add_shard(CLI::App& app);
// `arguments`: the program's own, for the ranks that it starts.
void add_execute(CLI::App& app, const std::vector<std::string>& arguments, int& status);
void add_validate(CLI::App& app, const std::vector<std::string>& arguments, int& status);
// `completion` and `manual`: what all commands above are, so they are added last.
void add_self_description(CLI::App& app);

// --max-memory-GB, of every command in which a typed number decides an allocation.
void add_memory_option(CLI::App& command, double& max_memory_GB);
// --jobs, --max-memory-GB, --format and --quiet, of commands that simulate on all cores.
void add_run_options(CLI::App& command, int& jobs, double& max_memory_GB, std::string& format, bool& quiet);
// Holds such a command to its memory.
void bound_run(double max_memory_GB, int jobs);

}  // namespace equipoise
