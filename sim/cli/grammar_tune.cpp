// The grammar of `tune`, and of `merge`.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "sim/cli/commands.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/study_commands.h"

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
  command->add_option("--shard", options->shard,
                      "i/n: only one of n shares of the search, i from 0; see merge");
  add_run_options(*command, options->jobs, options->max_memory_GB, options->format, options->quiet);
  command->callback([options, &status] {
    bound_run(options->max_memory_GB, options->jobs);
    status = run_tune_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

void add_merge(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "merge",
      "Put together what the shards of `tune` or of `study --sweep` found, as one machine would have");
  command->footer(
      "Example: equipoise merge results parts\n"
      "  after: equipoise tune study.json --shard 0/2 --out parts, and the same with 1/2, on another "
      "machine");
  const auto options = std::make_shared<MergeOptions>();
  command->add_option("out", options->out, "Folder for the results of the whole")->required();
  command->add_option("folders", options->folders, "Folders of shards: their --out, or one each")->required();
  add_run_options(*command, options->jobs, options->max_memory_GB, options->format, options->quiet);
  command->callback([options, &status] {
    bound_run(options->max_memory_GB, options->jobs);
    status = run_merge_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

}  // namespace equipoise
