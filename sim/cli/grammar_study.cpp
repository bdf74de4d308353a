// The grammar of the commands that take a study: study, check, tune, merge, export, report, execute, validate.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "policies/base/text.h"
#include "sim/cli/command_line.h"
#include "sim/cli/study_commands.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/expectation.h"
#include "sim/report/result_files.h"

namespace equipoise {
namespace {

constexpr double kMostThreads = 4096;
constexpr double kMostSteps = 1 << 20;

// --jobs, --max-memory-GB, --format and --quiet, of commands that simulate on all cores.
void add_simulation_options(Command& command, SimulationOptions& options) {
  command.add("--jobs", options.jobs, "Threads; all cores by default").range(0, kMostThreads);
  add_memory_option(command, options.max_memory_GB);
  add_format_option(command, options.format);
  command.add("--quiet", options.quiet, "No notes on stderr");
}

// Holds such a command to its memory, then runs it.
template <class Options>
int run_bounded(int (*run)(const Options&, std::ostream&, std::ostream&, const std::atomic<bool>&),
                const Options& options) {
  constexpr int kRows = 2;  // at a time (sim/study/row/simulate.cpp), each of which may have helpers
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  bound_memory(memory_limit(options.max_memory_GB), kRows * std::max(cores, options.jobs));
  return run(options, std::cout, std::cerr, stop_on_interrupt());
}

// What commands take that run plans for real: the study, which of it is run, on what, and what is printed.
void add_rank_options(Command& command, RankOptions& options) {
  command.add("file", options.file, "Study file (JSON)").required();
  command.add("--set", options.set, "Override a key: parallel.context=2, policies.0.queues=3");
  command.add("--policy", options.policy, "Only the row of this label");
  command.add("--steps", options.steps, "Steps of each plan that are run")
      .range(1, kMostSteps)
      .shows_default();
  command.add("--device", options.device, "cpu or cuda").shows_default();
  command.add("--replay", options.replay,
              "All ranks on one device, one after the other; the step is composed by the schedule");
  command
      .add("--op-timeout", options.op_timeout_seconds,
           "Seconds that a rank may compute one op while others wait; then it hangs, and the run ends")
      .range(1, 1e9)
      .shows_default();
  command.add("--seed", options.seed, "Of weights and tokens").shows_default();
  add_memory_option(command, options.max_memory_GB);
  add_format_option(command, options.format, "table or json");
  command.add("--quiet", options.quiet, "No progress on stderr");
}

}  // namespace

Command grammar_of_study() {
  const auto options = std::make_shared<StudyOptions>();
  options->version = EQUIPOISE_VERSION;
  Command command{
      "study", "Compare every policy of a study on the same documents",
      "Example: equipoise study traces/studies/7b-128k.json --set parallel.context=4 --out results"};
  command.add("file", options->file, "Study file (JSON)").required();
  command.add("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command.add("--sweep", options->sweep, "Run all values of a key: batch.context_window=64K,128K");
  const std::vector<std::string_view> files = each_of(study_outputs(), &StudyOutput::file);
  command.add("--out", options->out, "Folder for " + joined(files) + ", timelines");
  command.add("--shard", options->shard,
              "i/n: only every n-th case of the sweep, from case i (0 is the first); see merge");
  command.add("--resume", options->resume, "Of a sweep: leave out the cases that --out has finished");
  command.add("--jobs", options->jobs, "Threads; all cores by default").range(0, kMostThreads);
  command.add("--fidelity", options->fidelity, "stage or op").shows_default();
  command.add("--no-fold-tp", options->no_fold_tp, "op: every GPU its own tasks, not one per TP group");
  command.add("--contention", options->contention, "op: flows that share links share their bandwidth");
  command.add("--jitter", options->jitter, "op: relative standard deviation of every op").range(0, 1);
  command.add("--jitter-seed", options->jitter_seed, "op: seed of the jitter").acting("--jitter");
  command.add("--stragglers", options->stragglers, "op: slow GPUs and their speed, 12:0.8,77:0.5");
  command.add("--timeline-steps", options->timeline_steps, "With --out: steps of every policy's timeline")
      .shows_default()
      .acting("--out");
  command
      .add("--timeline-lanes", options->timeline_lanes,
           "Lanes in timelines, 0,3, or all; by default all, of op fidelity the first")
      .acting("--out");
  command
      .add("--timeline-stages", options->timeline_stages,
           "Stages in timelines, 0,3, or all; by default all, of op fidelity the first")
      .acting("--out");
  command.add("--timeline-ranks", options->timeline_ranks, "CP ranks in timelines, 0,3, or all (default)")
      .acting("--out");
  command.add("--timeline-gzip", options->timeline_gzip, "Compress timelines (LABEL.pftrace.gz)")
      .acting("--out");
  command
      .add("--timeline-counters", options->timeline_counters,
           "Counters of each rank in timelines: memory, tokens, or none")
      .shows_default()
      .acting("--out");
  command.add("--chakra", options->chakra,
              "op, with --out: the first step as Chakra traces for ASTRA-sim, a file per GPU");
  command.add("--ignore-memory", options->ignore_memory,
              "Times of policies that do not fit into memory, too; their rows stay marked oom");
  command.add(
      "--verify", options->verify,
      "Look at the result again: plans by the validator, times by the other fidelity's engine, a step's "
      "schedule, timeline and memory by the tests' oracle, the table by its sums; exit 1 where something "
      "differs");
  command.add("--max-cases", options->max_cases, "Most cases of a sweep")
      .range(1, static_cast<double>(std::int64_t{1} << 40))
      .shows_default()
      .acting("--sweep");
  add_memory_option(command, options->max_memory_GB);
  command.add("--max-output-GB", options->max_output_GB, "Most that --out may write for a case")
      .range(0, 1e6)
      .shows_default()
      .acting("--out");
  add_format_option(command, options->format);
  command.add("--quiet", options->quiet, "No notes on stderr");
  return command.doing([options] { return run_bounded(run_study_command, *options); });
}

Command grammar_of_verify() {
  const auto options = std::make_shared<VerifyOptions>();
  options->version = EQUIPOISE_VERSION;
  Command command{"verify",
                  "Trace a saved result and run it again: exit 1 where it is not what its inputs give",
                  "Example: equipoise verify results/summary.json"};
  command.add("file", options->file, "summary.json of `study --out`").required();
  command.add("--jobs", options->jobs, "Threads; all cores by default").range(0, kMostThreads);
  add_memory_option(command, options->max_memory_GB);
  add_format_option(command, options->format, "table or json");
  command.add("--quiet", options->quiet, "No notes on stderr");
  return command.doing([options] { return run_bounded(run_verify_command, *options); });
}

Command grammar_of_check() {
  const auto options = std::make_shared<CheckOptions>();
  Command command{
      "check",
      "Hold a study's policy speed-ups and step times against what is expected: exit 1 where one has moved",
      "Example: equipoise check study.json --expect study.expected.json --update\n"
      "         equipoise check study.json --expect study.expected.json --junit check.xml"};
  command.add("file", options->file, "Study file (JSON)").required();
  command.add("--expect", options->expect, "Expectation file (JSON); --update makes it").required();
  command.add("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command
      .add("--metric", options->metrics,
           "What is guarded: " + joined(kGuardedMetrics) + "; a change of status always fails")
      .split()
      .shows_default("speedup,step_seconds");
  command
      .add("--tolerance", options->tolerances,
           "Share of the expected value that a metric may move by, as 5% or 0.05: one each, or one for all")
      .split()
      .shows_default("0.5% of a speed-up, 2% of a time or rate");
  command.add("--only-worse", options->only_worse, "A metric that is better is said and does not fail");
  command.add("--update", options->update, "Write what is found into the expectation file");
  command.add("--junit", options->junit, "JUnit XML file for CI systems");
  add_simulation_options(command, *options);
  return command.doing([options] { return run_bounded(run_check_command, *options); });
}

Command grammar_of_tune() {
  const auto options = std::make_shared<TuneOptions>();
  Command command{"tune", "Search policy, options and layout for the best throughput of a study",
                  "Example: equipoise tune traces/studies/7b-128k.json --max-delay 1,20 --out results"};
  command.add("file", options->file, "Study file (JSON)").required();
  command.add("--set", options->set, "Override a key of the study: batch.steps=20");
  command.add("--space", options->space, "Keys of a study with the values to try (JSON)");
  command.add("--budget", options->budget, "Most candidates to try").shows_default();
  command.add(
      "--minutes", options->minutes,
      "Ends the search after so many minutes, with its best, and what ifs after a quarter as many; 0: never");
  command
      .add("--max-delay", options->max_delay,
           "Most delay of a token in iterations, of the mean and of the largest; or MEAN,LARGEST")
      .split();
  command.add("--gpus", options->gpus, "Exactly so many GPUs; the study's by default").range(1, 1 << 22);
  command.add("--for", options->target, "Only layouts that `export --for` this framework can express");
  command.add("--out", options->out, "Folder: report.html, tune.json, best.json, the search's journal");
  command.add("--resume", options->resume, "Go on with the search whose journal is in --out");
  command.add("--shard", options->shard, "i/n: only one of n shares of the search, i from 0; see merge");
  add_simulation_options(command, *options);
  return command.doing([options] { return run_bounded(run_tune_command, *options); });
}

Command grammar_of_merge() {
  const auto options = std::make_shared<MergeOptions>();
  Command command{
      "merge",
      "Put together what the shards of `tune` or of `study --sweep` found, as one machine would have",
      "Example: equipoise merge results parts\n"
      "  after: equipoise tune study.json --shard 0/2 --out parts, and the same with 1/2, on another "
      "machine"};
  command.add("out", options->out, "Folder for the results of the whole").required();
  command.add("folders", options->folders, "Folders of shards: their --out, or one each").required();
  command.add("--minutes", options->minutes, "tune: ends trying the rest after so many minutes; 0: never");
  add_simulation_options(command, *options);
  return command.doing([options] { return run_bounded(run_merge_command, *options); });
}

Command grammar_of_export() {
  const auto options = std::make_shared<ExportOptions>();
  Command command{"export", "A study's best row as flags or config of a training framework, or as a job of Slurm",
                  "Example: equipoise export results/best.json --for megatron\n"
                  "         equipoise export study.json --for slurm --sweep parallel.context=1,2,4 > sweep.sh"};
  command.add("file", options->file, "Study file (JSON), such as tune's best.json").required();
  command.add("--for", options->target, "megatron, nemo, deepspeed, torchtitan, verl or slurm").required();
  command.add("--row", options->row, "Label of the row; the fastest by default");
  command.add("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command.add("--sweep", options->sweep, "slurm: run all values of a key; without it the job is a search (tune)");
  command.add("--tasks", options->tasks, "slurm: tasks of the array job").range(1, 10000).shows_default();
  command.add("--jobs", options->jobs, "Threads; all cores by default").range(0, kMostThreads);
  add_memory_option(command, options->max_memory_GB);
  command.add("--quiet", options->quiet, "Nothing on stderr of what cannot be expressed");
  return command.doing([options] { return run_bounded(run_export_command, *options); });
}

Command grammar_of_report() {
  const auto options = std::make_shared<ReportOptions>();
  Command command{"report", "A saved result as table and page, or two side by side",
                  "Example: equipoise report before after --out changes.html"};
  command.add("first", options->first, "Folder of `study --out`, or its summary.json").required();
  command.add("second", options->second, "Another one: what changed from the first to it");
  command.add("--out", options->out, "Page to write (.html)");
  add_format_option(command, options->format);
  return command.doing([options] { return run_report_command(*options, std::cout, std::cerr); });
}

Command grammar_of_execute(const std::vector<std::string>& arguments) {
  const auto options = std::make_shared<ExecuteOptions>();
  Command command{
      "execute",
      "Run a study's plans for real, on ranks of this machine, and check them against every slice alone",
      "Example: equipoise execute traces/studies/execute-small.json --steps 3 --policy plain"};
  add_rank_options(command, *options);
  command.add("--repetitions", options->repetitions, "How often they are timed; 0: only checked")
      .range(0, kMostSteps)
      .shows_default();
  command.add("--loss-normalizer", options->normalizer, "token, sample, sum or stable").shows_default();
  command.add("--dump", options->dump, "Folder for the first step's weights, gradients and tokens (NumPy)");
  command.add("--out", options->out, "Folder for execution.json");
  return command.doing(
      [options, arguments] { return run_execute_command(*options, arguments, std::cout, std::cerr); });
}

Command grammar_of_validate(const std::vector<std::string>& arguments) {
  const auto options = std::make_shared<ValidateOptions>();
  Command command{
      "validate",
      "Run a study for real and simulated, and compare both op by op; or compare a log of your own run",
      "Example: equipoise validate traces/studies/execute-small.json --steps 5 --out report\n"
      "         equipoise validate study.json --measured train.log"};
  add_rank_options(command, *options);
  command.add("--repetitions", options->repetitions, "Rounds over all of them")
      .range(1, kMostSteps)
      .shows_default();
  command
      .add("--minutes", options->minutes,
           "Most minutes of profiling where the profile is of another device; 0: take it as it is")
      .range(0, 1e6)
      .shows_default()
      .takes_last = true;
  command
      .add("--calibration-steps", options->calibration_steps,
           "Steps of each plan, on other documents in other windows, that show how long ops take inside a "
           "step; 0: as long as the profile says")
      .range(0, kMostSteps)
      .shows_default();
  command.add("--measured", options->measured,
              "A log instead of a run: CSV (step,step_seconds), Megatron-LM's, a torch profiler trace");
  command.add("--out", options->out, "Folder: report.html, validation.json, .txt, .svg; ranks' timelines");
  return command.doing(
      [options, arguments] { return run_validate_command(*options, arguments, std::cout, std::cerr); });
}

}  // namespace equipoise
