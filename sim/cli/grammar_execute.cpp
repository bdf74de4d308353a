// The grammar of the commands that run plans for real: execute, validate.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "sim/cli/grammar_parts.h"
#include "sim/cli/study_commands.h"

namespace equipoise {
namespace {

// What both commands take: the study, which of it is run, on what, and what is printed.
template <class Options>
void add_run_options(CLI::App& command, Options& options) {
  command.add_option("file", options.file, "Study file (JSON)")->required();
  command.add_option("--set", options.set, "Override a key: parallel.context=2, policies.0.queues=3");
  command.add_option("--policy", options.policy, "Only the row of this label");
  command.add_option("--steps", options.steps, "Steps of each plan that are run")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  command.add_flag("--replay", options.replay,
                   "All ranks on one device, one after the other; the step is composed by the schedule");
  command
      .add_option("--op-timeout", options.op_timeout_seconds,
                  "Seconds that a rank may compute one op while others wait; then it hangs, and the run ends")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of weights and tokens")->capture_default_str();
  command.add_option("--format", options.format, "table or json")->capture_default_str();
  command.add_flag("--quiet", options.quiet, "No progress on stderr");
}

}  // namespace

void add_execute(CLI::App& app, const std::vector<std::string>& arguments, int& status) {
  CLI::App* command = app.add_subcommand(
      "execute",
      "Run a study's plans for real, on ranks of this machine, and check them against every slice alone");
  command->footer("Example: equipoise execute traces/studies/execute-small.json --steps 3 --policy plain");
  const auto options = std::make_shared<ExecuteOptions>();
  add_run_options(*command, *options);
  command->add_option("--repetitions", options->repetitions, "How often they are timed; 0: only checked")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--loss-normalizer", options->normalizer, "token, sample, sum or stable")
      ->capture_default_str();
  command->add_option("--dump", options->dump,
                      "Folder for the first step's weights, gradients and tokens (NumPy)");
  command->add_option("--out", options->out, "Folder for execution.json");
  command->callback([options, arguments, &status] {
    status = run_execute_command(*options, arguments, std::cout, std::cerr);
  });
}

void add_validate(CLI::App& app, const std::vector<std::string>& arguments, int& status) {
  CLI::App* command = app.add_subcommand(
      "validate",
      "Run a study for real and simulated, and compare both op by op; or compare a log of your own run");
  command->footer(
      "Example: equipoise validate traces/studies/execute-small.json --steps 5 --out report\n"
      "         equipoise validate study.json --measured train.log");
  const auto options = std::make_shared<ValidateOptions>();
  add_run_options(*command, *options);
  command->add_option("--repetitions", options->repetitions, "Rounds over all of them")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--minutes", options->minutes,
                   "Most minutes of profiling where the profile is of another device; 0: take it as it is")
      ->take_last()
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option(
          "--calibration-steps", options->calibration_steps,
          "Steps of each plan, on other documents in other windows, that show how long ops take inside a "
          "step; 0: as long as the profile says")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option(
      "--measured", options->measured,
      "A log instead of a run: CSV (step,step_seconds), Megatron-LM's, a torch profiler trace");
  command->add_option("--out", options->out, "Folder for validation.json, .txt, .svg and timelines");
  command->callback([options, arguments, &status] {
    status = run_validate_command(*options, arguments, std::cout, std::cerr);
  });
}

}  // namespace equipoise
