// The grammar of the commands about studies and plans: study, pack, list.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "sim/cli/command_list.h"
#include "sim/cli/command_pack.h"
#include "sim/cli/command_study.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/interrupt.h"
#include "sim/limits/memory_limit.h"
#include "sim/report/result_files.h"
#include "sim/study/pack_request.h"

namespace equipoise {

void add_study(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("study", "Compare every policy of a study on the same documents");
  command->footer(
      "Example: equipoise study traces/studies/7b-128k.json --set parallel.context=4 --out results");
  const auto options = std::make_shared<StudyOptions>();
  command->add_option("file", options->file, "Study file (JSON)")->required();
  command->add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command->add_option("--sweep", options->sweep, "Run all values of a key: batch.context_window=64K,128K");
  std::vector<std::string_view> files;
  for (const StudyOutput& output : study_outputs()) files.push_back(output.file);
  command->add_option("--out", options->out, "Folder for " + joined(files) + ", timelines");
  command->add_option("--shard", options->shard,
                      "i/n: only every n-th case of the sweep, from case i (0 is the first); see merge");
  command->add_flag("--resume", options->resume, "Of a sweep: leave out the cases that --out has finished");
  command->add_option("--jobs", options->jobs, "Threads; all cores by default")->check(CLI::Range(0, 4096));
  command->add_option("--fidelity", options->fidelity, "stage or op")->capture_default_str();
  command->add_flag("--no-fold-tp", options->no_fold_tp, "op: every GPU its own tasks, not one per TP group");
  command->add_flag("--contention", options->contention, "op: flows that share links share their bandwidth");
  command->add_option("--jitter", options->jitter, "op: relative standard deviation of every op")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--jitter-seed", options->jitter_seed, "op: seed of the jitter");
  command->add_option("--stragglers", options->stragglers, "op: slow GPUs and their speed, 12:0.8,77:0.5");
  command
      ->add_option("--timeline-steps", options->timeline_steps,
                   "With --out: steps of every policy's timeline")
      ->capture_default_str();
  command->add_option("--timeline-lanes", options->timeline_lanes,
                      "Lanes in timelines, 0,3, or all; by default all, of op fidelity the first");
  command->add_option("--timeline-stages", options->timeline_stages,
                      "Stages in timelines, 0,3, or all; by default all, of op fidelity the first");
  command->add_option("--timeline-ranks", options->timeline_ranks,
                      "CP ranks in timelines, 0,3, or all (default)");
  command->add_flag("--timeline-gzip", options->timeline_gzip, "Compress timelines (LABEL.pftrace.gz)");
  command
      ->add_option("--timeline-counters", options->timeline_counters,
                   "Counters of each rank in timelines: memory, tokens, or none")
      ->capture_default_str();
  command->add_flag("--chakra", options->chakra,
                    "op, with --out: the first step as Chakra traces for ASTRA-sim, a file per GPU");
  command->add_flag("--ignore-memory", options->ignore_memory,
                    "Times of policies that do not fit into memory, too; their rows stay marked oom");
  command->add_option("--max-cases", options->max_cases, "Most cases of a sweep")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  add_memory_option(*command, options->max_memory_GB);
  command->add_option("--max-output-GB", options->max_output_GB, "Most that --out may write for a case")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--format", options->format, "table, json or csv")->capture_default_str();
  command->add_flag("--quiet", options->quiet, "No notes on stderr");
  command->callback([options, &status] {
    bound_run(options->max_memory_GB, options->jobs);
    status = run_study_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

void add_list(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "list", "What there is: policies, schedules, models, profiles, frameworks, traces, schema");
  command->footer("Example: equipoise list policies");
  const auto what = std::make_shared<std::string>();
  const auto format = std::make_shared<std::string>("table");
  command->add_option("what", *what, "policies, schedules, models, profiles, frameworks, traces or schema")
      ->required();
  command->add_option("--format", *format, "table, json or csv")->capture_default_str();
  command->callback([what, format] { run_list_command(*what, parse_format(*format), std::cout); });
}

void add_pack(CLI::App& app) {
  struct Arguments {
    PackCommandOptions options;
    std::string policy, compare, format = "table";
    std::vector<std::string> values = std::vector<std::string>(pack_keys().size());
    std::vector<char> flags = std::vector<char>(pack_keys().size());
  };
  CLI::App* command = app.add_subcommand("pack", "Only the plan of a policy, with its metrics");
  command->footer("Example: equipoise pack wlb-128k --policy wlb --queues 2 --steps 20 --format json");
  const auto a = std::make_shared<Arguments>();
  PackCommandOptions& options = a->options;
  command->add_option("trace", options.trace, "Trace file, or the name of a published distribution")
      ->required();
  command->add_option("--policy", a->policy, "See `equipoise list policies`");
  command->add_option("--compare", a->compare, "Policies side by side: A,B,C");
  command->add_option("--lanes", options.lanes, "Data-parallel replicas")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--context", options.context, "CP degree")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--seed", options.seed, "Of shuffles and of a drawn trace")->capture_default_str();
  command->add_option("--cost", options.cost,
                      "quadratic, flops (needs --model) or profiled (needs --model, --profile)");
  command->add_option("--model", options.model, "Built-in name, or a Hugging Face config.json");
  command->add_option("--profile", options.profile, "See `equipoise list profiles`");
  command->add_option("--column", options.column, "CSV column or JSONL field of the trace");
  add_memory_option(*command, options.max_memory_GB);
  command->add_option("--format", a->format, "table, json or csv")->capture_default_str();
  for (std::size_t i = 0; i < pack_keys().size(); ++i) {
    const PackKey& option = pack_keys()[i];
    if (option.kind == ParameterKind::flag)
      command->add_flag_callback(
          option.flag, [a, i] { a->flags[i] = 1; }, option.help);
    else
      command->add_option(option.flag, a->values[i], option.help);
  }
  command->callback([a] {
    PackCommandOptions run = a->options;
    run.format = parse_format(a->format);
    if (a->policy.empty() == a->compare.empty())
      throw UserError("pack: expected --policy NAME or --compare A,B,C");
    run.compare = !a->compare.empty();
    for (const auto& name : list_of_words(run.compare ? a->compare : a->policy)) run.policies.push_back(name);
    for (std::size_t i = 0; i < pack_keys().size(); ++i) {
      const PackKey& option = pack_keys()[i];
      nlohmann::json& object = option.batch ? run.batch : run.policy;
      if (a->flags[i] != 0) object[option.key] = option.value;
      if (!a->values[i].empty()) object[option.key] = typed_value(option, a->values[i]);
    }
    bound_memory(memory_limit(run.max_memory_GB));
    run_pack_command(run, std::cout, std::cerr);
  });
}

}  // namespace equipoise
