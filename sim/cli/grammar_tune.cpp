// The grammar of `tune`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>

#include "sim/cli/command_tune.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/interrupt.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

void add_tune(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("tune", "Search policy, options and layout for the best throughput of a study");
  command->footer("Example: equipoise tune traces/studies/7b-128k.json --max-delay 1 --out results");
  const auto options = std::make_shared<TuneOptions>();
  command->add_option("file", options->file, "Study file (JSON)")->required();
  command->add_option("--set", options->set, "Override a key of the study: batch.steps=20");
  command->add_option("--space", options->space, "Keys of a study with the values to try (JSON)");
  command->add_option("--budget", options->budget, "Most candidates to try")->capture_default_str();
  command->add_option("--max-delay", options->max_delay, "Most mean delay of a token, in iterations")
      ->check(CLI::Range(0.0, 1e9));
  command->add_option("--gpus", options->gpus, "Exactly so many GPUs; the study's by default")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 22));
  command->add_option("--out", options->out, "Folder for tune.json, best.json and the journal of the search");
  command->add_flag("--resume", options->resume, "Go on with the search whose journal is in --out");
  command->add_option("--jobs", options->jobs, "Threads; all cores by default")->check(CLI::Range(0, 4096));
  add_memory_option(*command, options->max_memory_GB);
  command->add_option("--format", options->format, "table, json or csv")->capture_default_str();
  command->add_flag("--quiet", options->quiet, "No notes on stderr");
  command->callback([options, &status] {
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    bound_memory(memory_limit(options->max_memory_GB), std::max(cores, options->jobs));
    status = run_tune_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

}  // namespace equipoise
