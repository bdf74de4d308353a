#include "sim/cli/grammar_study.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>

#include "policies/base/text.h"
#include "sim/cli/command_check.h"
#include "sim/cli/command_execute.h"
#include "sim/cli/command_export.h"
#include "sim/cli/command_import.h"
#include "sim/cli/command_init.h"
#include "sim/cli/command_line.h"
#include "sim/cli/command_merge.h"
#include "sim/cli/command_report.h"
#include "sim/cli/command_study.h"
#include "sim/cli/command_tune.h"
#include "sim/cli/command_validate.h"
#include "sim/cli/command_verify.h"
#include "sim/report/expectation.h"
#include "sim/report/study_outputs.h"

namespace equipoise {
namespace {

constexpr int kMostSteps = 1 << 20;

// Adds --jobs, --max-memory-GB, --format and --quiet to commands that simulate on all cores.
void add_simulation_options(CLI::App& command, SimulationOptions& options) {
  add_jobs_option(command, options.jobs);
  add_memory_option(command, options.memory);
  add_format_option(command, options.format);
  command.add_flag("--quiet", options.quiet, "No progress on stderr");
}

void add_wide_option(CLI::App& command, bool& wide) {
  command.add_flag("--wide", wide, "Print all columns and rows, not only what fits on a screen");
}

// Runs such a command within its memory limit.
template <class Options>
int run_bounded(int (*run)(const Options&, std::ostream&, std::ostream&, const std::atomic<bool>&),
                const Options& options) {
  constexpr int kRows = 2;  // that run at a time (sim/study/row/simulate.cpp); each may have helpers
  bound_memory(options.memory, kRows * std::max(all_cores(), options.jobs));
  return run(options, std::cout, std::cerr, stop_on_interrupt());
}

// Adds the options of commands that run plans for real: the study, its part, the device, the output.
void add_rank_options(CLI::App& command, RankOptions& options) {
  command.add_option("file", options.file, "Study file (JSON)")->required();
  command.add_option("--set", options.set, "Override a key: parallel.context=2, policies.0.queues=3");
  command.add_option("--policy", options.policy, "Only the row of this label");
  command.add_option("--steps", options.steps, "Steps of each plan that are run")
      ->check(CLI::Range(1, kMostSteps))
      ->capture_default_str();
  command.add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  command.add_flag("--replay", options.replay,
                   "All ranks on one device, one after the other; the step is composed by the schedule");
  command
      .add_option("--op-timeout", options.op_timeout_seconds,
                  "Seconds that a rank may compute one op while others wait; then it hangs, and the run ends")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Seed of weights and tokens")->capture_default_str();
  add_memory_option(command, options.memory);
  add_format_option(command, options.format, "table or json");
  command.add_flag("--quiet", options.quiet, "No progress on stderr");
}

// Numbers separated by commas; none for "all".
std::vector<int> numbers_of(const std::string& option, const std::string& text) {
  std::vector<int> numbers;
  if (text == "all") return numbers;
  std::istringstream items(text + ',');
  for (std::string item; std::getline(items, item, ',');) {
    int number = 0;
    if (!CLI::detail::lexical_cast(item, number))
      throw UserError(option, ": expected numbers, such as 0,3, or all, found ", printable(text));
    numbers.push_back(number);
  }
  return numbers;
}

CounterSelection counters_of(const std::string& text) {
  CounterSelection selection{false, false};
  for (const std::string& item : CLI::detail::split(text, ','))
    if (item == "memory")
      selection.memory = true;
    else if (item == "tokens")
      selection.tokens = true;
    else if (text != "none")
      throw UserError("--timeline-counters: expected memory, tokens or none, found ", printable(item));
  return selection;
}

void add_timeline_options(CLI::App& command, StudyOptions& options) {
  DetailOptions& details = options.run.details;
  const auto with_out = [](CLI::Option* option) { only_with("--out", option); };
  const auto add_numbers = [&](const std::string& name, auto& numbers, const std::string& help) {
    with_out(command.add_option_function<std::string>(
        name, [&numbers, name](const std::string& text) { numbers = numbers_of(name, text); }, help));
  };
  with_out(
      at_least(0, command.add_option("--timeline-steps", details.steps, "Steps of every policy's timeline")
                      ->capture_default_str()));
  add_numbers("--timeline-lanes", options.timeline_lanes,
              "Lanes in timelines, 0,3, or all; by default all, of op fidelity the first");
  add_numbers("--timeline-stages", options.timeline_stages,
              "Stages in timelines, 0,3, or all; by default all, of op fidelity the first");
  add_numbers("--timeline-ranks", details.selection.ranks, "CP ranks in timelines, 0,3, or all (default)");
  with_out(command.add_flag("--timeline-gzip", details.gzip, "Compress timelines (LABEL.pftrace.gz)"));
  with_out(command
               .add_option_function<std::string>(
                   "--timeline-counters",
                   [&details](const std::string& text) { details.selection.counters = counters_of(text); },
                   "Counters of each rank in timelines: memory, tokens, or none")
               ->default_str("memory,tokens"));
}

// Adds the options that decide how a study's steps are simulated.
void add_step_options(CLI::App& command, StepSettings& steps) {
  OpFidelity& op = steps.op;
  command
      .add_option_function<std::string>(
          "--fidelity", [&steps](const std::string& text) { steps.fidelity = parse_fidelity(text); },
          "stage or op")
      ->default_str(std::string(kFidelityNames[at(steps.fidelity)]));
  command.add_flag_callback(
      "--no-fold-tp", [&op] { op.fold_tp = false; }, "op: every GPU its own tasks, not one per TP group");
  command.add_flag("--contention", op.contention, "op: flows that share links share their bandwidth");
  command.add_option("--jitter", op.jitter, "op: relative standard deviation of every op")
      ->check(CLI::Range(0.0, 1.0));
  only_with("--jitter", command.add_option("--jitter-seed", op.seed, "op: seed of the jitter"));
  command.add_option_function<std::string>(
      "--stragglers", [&op](const std::string& text) { op.stragglers = parse_stragglers(text); },
      "op: slow GPUs and their speed, 12:0.8,77:0.5");
}

// Adds the options of a job without a study file.
void add_job_options(CLI::App& command, JobOptions& job) {
  command.add_option("--model", job.model,
                     "A job without a study file: a model (`list models`), or a config.json");
  const auto of_job = [](CLI::Option* option) { only_with("--model", option); };
  of_job(command.add_option("--gpus", job.gpus, "GPUs of the job")->check(CLI::Range(1, 1 << 22)));
  of_job(command.add_option("--gpu", job.gpu, "Profile, or how its name begins: h100, h200, ...")
             ->capture_default_str());
  of_job(command.add_option(
      "--trace", job.trace,
      "Document lengths: a file, a shipped trace or a distribution; the shipped mixture by default"));
  of_job(command.add_option("--window", job.window,
                            concatenated("Tokens of a window; ", kDefaultWindow, " by default")));
  of_job(command.add_option(
      "--framework", job.framework,
      "Preset (`list frameworks`); megatron by default, megatron-eager for a model with experts"));
  command
      .add_option("--policies", job.policies,
                  "With --model: rows; by default what the framework does, one of each paper's and equipoise")
      ->delimiter(',');
}

void add_init(CLI::App& program, int& status) {
  const auto options = std::make_shared<InitOptions>();
  CLI::App& command = add_command(
      program, "init",
      "A study file for a job: model, GPUs and documents; the layout is the fastest found that fits",
      "Example: equipoise init --model qwen3-8b --gpus 32 --window 32K --out study.json");
  add_job_options(command, options->job);
  command.add_option("--out", options->out, "Study file to write; stdout by default");
  add_jobs_option(command, options->jobs);
  command.callback([options, &status] {
    if (options->job.model.empty()) throw UserError("init: expected --model, found none");
    status = run_init_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

void add_study(CLI::App& program, int& status) {
  const auto options = std::make_shared<StudyOptions>();
  options->version = EQUIPOISE_VERSION;
  CLI::App& command = add_command(
      program, "study", "Compare every policy of a study on the same documents",
      "Example: equipoise study traces/studies/7b-128k.json --set parallel.context=4 --out results");
  command.add_option("file", options->file, "Study file (JSON); or a job by --model and --gpus");
  add_job_options(command, options->job);
  command.add_option(
      "--measured-step", options->measured_step,
      "Your own step: seconds, or a log that `validate --measured` reads. One factor on all kernels makes "
      "its row take as long, and holds for all rows and cases");
  only_with("--measured-step", command.add_option("--row", options->row,
                                                  "Label of the measured row; the baseline's by default"));
  command.add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command.add_option("--sweep", options->sweep, "Run all values of a key: batch.context_window=64K,128K");
  command
      .add_option(
          "--seeds", options->seeds,
          "Run so many seeds of the trace, from its own on, and print the lowest, mean and highest of "
          "each row")
      ->check(CLI::Range(2, 1000));
  const std::vector<std::string_view> files = each_of(study_outputs(), &StudyOutput::file);
  command.add_option("--out", options->out, "Folder for " + joined(files) + ", timelines");
  command.add_option("--shard", options->shard,
                     "i/n: only every n-th case of the sweep, from case i (0 is the first); see merge");
  command.add_flag("--resume", options->resume, "Skip the cases of a sweep that --out has finished");
  add_step_options(command, options->run.steps);
  add_timeline_options(command, *options);
  command.add_flag("--chakra", options->run.details.chakra,
                   "op, with --out: the first step as Chakra traces for ASTRA-sim, a file per GPU");
  command.add_flag("--ignore-memory", options->run.ignore_memory,
                   "Simulate policies that do not fit into memory, too; their rows stay marked oom");
  at_least(0, command.add_option("--max-delay", options->run.max_delay,
                                 "Iterations that tokens of the row that is called fastest may wait on the "
                                 "mean; the study's max_delay by default, which is 1"));
  command.add_option_function<std::string>(
      "--tokens",
      [options](const std::string& text) { options->run.tokens_of_job = parse_tokens(text, "--tokens"); },
      "Days, GPU-hours and, with cluster.dollars_per_gpu_hour, dollars of a job of so many tokens: 300B, 2T");
  add_wide_option(command, options->wide);
  command.add_flag("--notes", options->notes, "Print all notes on stderr, not only the warnings");
  command.add_flag(
      "--verify", options->run.verify,
      "Check the result: plans by the validator, times by the engine of the other fidelity, a step's "
      "schedule, timeline and memory by independent code, the table by its sums; exit 1 where something "
      "differs");
  only_with("--sweep", command.add_option("--max-cases", options->max_cases, "Most cases of a sweep")
                           ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
                           ->capture_default_str());
  only_with("--out", command
                         .add_option("--max-output-GB", options->max_output_GB,
                                     "Most that may be written to the folder of a case")
                         ->check(CLI::Range(0.0, 1e6))
                         ->capture_default_str());
  add_simulation_options(command, *options);
  command.callback([options, &status] { status = run_bounded(run_study_command, *options); });
}

void add_verify(CLI::App& program, int& status) {
  const auto options = std::make_shared<VerifyOptions>();
  options->version = EQUIPOISE_VERSION;
  CLI::App& command = add_command(
      program, "verify", "Trace a saved result and run it again: exit 1 where it is not what its inputs give",
      "Example: equipoise verify results/summary.json");
  command.add_option("file", options->file, "summary.json of `study --out`")->required();
  add_jobs_option(command, options->jobs);
  add_memory_option(command, options->memory);
  add_format_option(command, options->format, "table or json");
  command.add_flag("--quiet", options->quiet, "No notes on stderr");
  command.callback([options, &status] { status = run_bounded(run_verify_command, *options); });
}

void add_check(CLI::App& program, int& status) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App& command = add_command(
      program, "check",
      "Compare a study's speed-ups and step times with what is expected: exit 1 where one has moved",
      "Example: equipoise check study.json --expect study.expected.json --update\n"
      "         equipoise check study.json --expect study.expected.json --junit check.xml");
  command.add_option("file", options->file, "Study file (JSON)")->required();
  command.add_option("--expect", options->expect, "Expectation file (JSON); --update makes it")->required();
  command.add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command
      .add_option("--metric", options->metrics,
                  "What is guarded: " + joined(kGuardedMetrics) + "; a change of status always fails")
      ->delimiter(',')
      ->default_str("speedup,step_seconds");
  command
      .add_option("--tolerance", options->tolerances,
                  "Share of the expected value that a metric may move by, as 5% or 0.05: one per metric, or "
                  "one for all")
      ->delimiter(',')
      ->default_str("0.5% of a speed-up, 2% of a time or rate");
  command.add_flag("--only-worse", options->only_worse,
                   "A metric that is better is reported and does not fail");
  command.add_flag("--update", options->update, "Write what is found into the expectation file");
  command.add_option("--junit", options->junit, "JUnit XML file for CI systems");
  add_simulation_options(command, *options);
  command.callback([options, &status] { status = run_bounded(run_check_command, *options); });
}

constexpr const char* kWhatIfHelp =
    "Also run the winner and up to eight rivals on half and twice the network, less memory and other "
    "documents: "
    "up to 36 more candidates in full";

void add_tune(CLI::App& program, int& status) {
  const auto options = std::make_shared<TuneOptions>();
  CLI::App& command =
      add_command(program, "tune", "Search policy, options and layout for the best throughput of a study",
                  "Example: equipoise tune traces/studies/7b-128k.json --max-delay 1,20 --out results");
  command.add_option("file", options->file, "Study file (JSON)")->required();
  command.add_option("--set", options->set, "Override a key of the study: batch.steps=20");
  command.add_option("--space", options->space, "Keys of a study with the values to try (JSON)");
  at_least(1,
           command.add_option("--budget", options->budget, "Most candidates to try")->capture_default_str());
  at_least(0, command.add_option("--minutes", options->minutes,
                                 "Ends the search after so many minutes, with its best, and what ifs after a "
                                 "quarter as many; 0: never"));
  command.add_flag("--what-if", options->what_if, kWhatIfHelp);
  at_least(0, command
                  .add_option("--max-delay", options->max_delay,
                              "Iterations that tokens may wait on the mean; with MEAN,LARGEST each of them, "
                              "too")
                  ->delimiter(','));
  command
      .add_option("--gpus", options->gpus,
                  "Exactly so many GPUs (cluster.gpus of the candidates); the study's by default")
      ->check(CLI::Range(1, 1 << 22));
  command.add_option("--for", options->target, "Only layouts that `export --for` this framework can express");
  command.add_option("--out", options->out,
                     "Folder: report.html, tune.json, best.json, the search's journal");
  command.add_flag("--resume", options->resume, "Go on with the search whose journal is in --out");
  command.add_option("--shard", options->shard,
                     "i/n: only one of n shares of the search, i from 0; see merge");
  add_wide_option(command, options->wide);
  add_simulation_options(command, *options);
  command.callback([options, &status] { status = run_bounded(run_tune_command, *options); });
}

void add_merge(CLI::App& program, int& status) {
  const auto options = std::make_shared<MergeOptions>();
  CLI::App& command = add_command(
      program, "merge",
      "Put together what the shards of `tune` or of `study --sweep` found, as one machine would have",
      "Example: equipoise merge results parts\n"
      "  after: equipoise tune study.json --shard 0/2 --out parts, and the same with 1/2, on another "
      "machine");
  command.add_option("out", options->out, "Folder for the results of the whole")->required();
  command.add_option("folders", options->folders, "Folders of shards: their --out, or one each")->required();
  at_least(0, command.add_option("--minutes", options->minutes,
                                 "tune: ends trying the rest after so many minutes; 0: never"));
  command.add_flag("--what-if", options->what_if, kWhatIfHelp);
  add_wide_option(command, options->wide);
  add_simulation_options(command, *options);
  command.callback([options, &status] { status = run_bounded(run_merge_command, *options); });
}

void add_export(CLI::App& program, int& status) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App& command = add_command(
      program, "export",
      "A study's best row as flags or config of a training framework, or as a job of Slurm",
      "Example: equipoise export results/best.json --for megatron\n"
      "         equipoise export study.json --for slurm --sweep parallel.context=1,2,4 > sweep.sh");
  command.add_option("file", options->file, "Study file (JSON), such as tune's best.json")->required();
  command.add_option("--for", options->target, "megatron, nemo, deepspeed, torchtitan, verl or slurm")
      ->required();
  command.add_option("--row", options->row, "Label of the row; the fastest by default");
  command.add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command.add_option("--sweep", options->sweep,
                     "slurm: run all values of a key; without it the job is a search (tune)");
  command.add_option("--tasks", options->tasks, "slurm: tasks of the array job")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  add_jobs_option(command, options->jobs);
  add_memory_option(command, options->memory);
  command.add_flag("--quiet", options->quiet, "Nothing on stderr of what cannot be expressed");
  command.callback([options, &status] { status = run_bounded(run_export_command, *options); });
}

void add_import(CLI::App& program) {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App& command = add_command(
      program, "import",
      "A job that runs as a study: a framework's flags, its configuration (YAML, TOML, JSON) or the head of "
      "its log",
      "Example: equipoise import train.sh --gpus 64 --out study.json\n"
      "         equipoise import sft.yaml --as llamafactory --gpu h200 | tee study.json\n"
      "What was assumed and every setting that was not understood are on stderr. It runs in Python 3, with "
      "PyYAML for YAML.");
  command.add_option("file", options->file, "Script, log, YAML, TOML or JSON of the job")->required();
  command.add_option(
      "--as", options->framework,
      "megatron, bridge, nemo, torchtitan, verl, deepspeed, trl, axolotl or llamafactory; found "
      "by the contents by default");
  command.add_option("--gpus", options->gpus, "GPUs of the job, where the file does not say it")
      ->check(CLI::Range(1, 1 << 22));
  command.add_option("--gpu", options->gpu, "h100, h200, b200, ..., or a profile; h100-sxm by default");
  command.add_option("--model", options->model,
                     "A built-in model, or the path of a config.json, instead of the file's");
  command.add_option("--out", options->out, "File for the study instead of stdout");
  command.add_option("--format", options->format, "json, which is a study, or table, a key a line")
      ->capture_default_str();
  command.add_flag("--quiet", options->quiet, "Only settings that were not understood on stderr");
  command.callback([options] { import_command(*options); });
}

void add_report(CLI::App& program, int& status) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App& command = add_command(program, "report", "A saved result as table and page, or two side by side",
                                  "Example: equipoise report before after --out changes.html");
  command.add_option("first", options->first, "Folder of `study --out`, or its summary.json")->required();
  command.add_option("second", options->second, "Another one: what changed from the first to it");
  command.add_option("--out", options->out, "Page to write (.html)");
  add_wide_option(command, options->wide);
  add_format_option(command, options->format);
  command.callback([options, &status] { status = run_report_command(*options, std::cout, std::cerr); });
}

void add_execute(CLI::App& program, const std::vector<std::string>& arguments, int& status) {
  const auto options = std::make_shared<ExecuteOptions>();
  CLI::App& command = add_command(
      program, "execute",
      "Run a study's plans for real, on ranks of this machine, and compare them with every slice alone",
      "Example: equipoise execute traces/studies/execute-small.json --steps 3 --policy plain");
  add_rank_options(command, *options);
  command.add_option("--repetitions", options->repetitions, "How often they are timed; 0: only checked")
      ->check(CLI::Range(0, kMostSteps))
      ->capture_default_str();
  command.add_option("--loss-normalizer", options->normalizer, "token, sample, sum or stable")
      ->capture_default_str();
  command.add_option("--dump", options->dump,
                     "Folder for the first step's weights, gradients and tokens (NumPy)");
  command.add_option("--out", options->out, "Folder for execution.json");
  command.callback([options, arguments, &status] {
    status = run_execute_command(*options, arguments, std::cout, std::cerr);
  });
}

void add_validate(CLI::App& program, const std::vector<std::string>& arguments, int& status) {
  const auto options = std::make_shared<ValidateOptions>();
  CLI::App& command = add_command(
      program, "validate",
      "Run a study for real and simulated, and compare both op by op; or compare a log of your own run",
      "Example: equipoise validate traces/studies/execute-small.json --steps 5 --out report\n"
      "         equipoise validate study.json --measured train.log");
  add_rank_options(command, *options);
  command.add_option("--repetitions", options->repetitions, "Rounds over all of them")
      ->check(CLI::Range(1, kMostSteps))
      ->capture_default_str();
  command
      .add_option("--minutes", options->minutes,
                  "Most minutes of profiling where the profile is of another device; 0: take it as it is")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->take_last();
  command
      .add_option("--calibration-steps", options->calibration_steps,
                  "Steps of each plan, on other documents in other windows, that show how long ops take "
                  "inside a step; 0: as long as the profile says")
      ->check(CLI::Range(0, kMostSteps))
      ->capture_default_str();
  command.add_option(
      "--measured", options->measured,
      "A log instead of a run: CSV (step,step_seconds), a framework's (Megatron-LM, torchtitan, DeepSpeed, "
      "NeMo, verl, Hugging Face), a torch profiler trace");
  command.add_option("--out", options->out, "Folder: report.html, validation.json, .txt; ranks' timelines");
  command.callback([options, arguments, &status] {
    status = run_validate_command(*options, arguments, std::cout, std::cerr);
  });
}

}  // namespace

void add_study_commands(CLI::App& program, const std::vector<std::string>& arguments, int& status) {
  add_study(program, status);
  add_init(program, status);
  add_check(program, status);
  add_verify(program, status);
  add_tune(program, status);
  add_merge(program, status);
  add_export(program, status);
  add_import(program);
  add_report(program, status);
  add_execute(program, arguments, status);
  add_validate(program, arguments, status);
}

}  // namespace equipoise
