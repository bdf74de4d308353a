// The grammar of `check`.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "policies/base/names.h"
#include "sim/cli/command_check.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/interrupt.h"
#include "sim/report/expectation.h"

namespace equipoise {

void add_check(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "check", "Hold a study's policy speed-ups against what is expected: exit 1 where one has moved");
  command->footer(
      "Example: equipoise check study.json --expect study.expected.json --update\n"
      "         equipoise check study.json --expect study.expected.json --junit check.xml");
  const auto options = std::make_shared<CheckOptions>();
  command->add_option("file", options->file, "Study file (JSON)")->required();
  command->add_option("--expect", options->expect, "Expectation file (JSON); --update makes it")->required();
  command->add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command
      ->add_option("--metric", options->metric,
                   "What is guarded: " + joined(kGuardedMetrics) + "; a change of status always fails")
      ->capture_default_str();
  command
      ->add_option("--tolerance", options->tolerance,
                   "Share of the expected value that it may move by, as 0.5% or 0.005")
      ->capture_default_str();
  command->add_flag("--update", options->update, "Write what is found into the expectation file");
  command->add_option("--junit", options->junit, "JUnit XML file for CI systems");
  add_run_options(*command, options->jobs, options->max_memory_GB, options->format, options->quiet);
  command->callback([options, &status] {
    bound_run(options->max_memory_GB, options->jobs);
    status = run_check_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

}  // namespace equipoise
