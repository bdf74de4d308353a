// The grammar of the commands about studies and plans: study, pack, list.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "policies/base/error.h"
#include "sim/cli/command_list.h"
#include "sim/cli/command_pack.h"
#include "sim/cli/command_study.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/interrupt.h"
#include "sim/limits/memory_limit.h"
#include "traces/json_text.h"

namespace equipoise {

void add_study(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("study", "Compare every policy of a study on the same documents");
  command->footer(
      "Example: equipoise study traces/studies/7b-128k.json --set parallel.context=4 --out results");
  const auto options = std::make_shared<StudyOptions>();
  command->add_option("file", options->file, "Study file (JSON)")->required();
  command->add_option("--set", options->set, "Override a key: parallel.context=4, policies.2.queues=3");
  command->add_option("--sweep", options->sweep, "Run all values of a key: batch.context_window=64K,128K");
  command->add_option("--out", options->out, "Folder for summary.json, steps.csv and plan.json");
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
  command->add_option("--timeline-lanes", options->timeline_lanes, "Lanes in timelines; all by default")
      ->delimiter(',');
  command->add_option("--timeline-stages", options->timeline_stages, "Stages in timelines; all by default")
      ->delimiter(',');
  command->add_option("--timeline-ranks", options->timeline_ranks, "CP ranks in timelines; all by default")
      ->delimiter(',');
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
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    bound_memory(memory_limit(options->max_memory_GB), std::max(cores, options->jobs));
    status = run_study_command(*options, std::cout, std::cerr, stop_on_interrupt());
  });
}

void add_list(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("list", "What there is: policies, schedules, models, profiles, frameworks, traces");
  command->footer("Example: equipoise list policies");
  const auto what = std::make_shared<std::string>();
  const auto format = std::make_shared<std::string>("table");
  command->add_option("what", *what, "policies, schedules, models, profiles, frameworks or traces")
      ->required();
  command->add_option("--format", *format, "table, json or csv")->capture_default_str();
  command->callback([what, format] { run_list_command(*what, parse_format(*format), std::cout); });
}

namespace {

// Options of `pack` that are keys of a study: sizes and words are passed on as they are typed and checked
// there.
enum class KeyKind { size, number, word, list, on, off };
struct KeyOption {
  const char* flag;
  const char* key;
  KeyKind kind;
  bool batch;  // of the study's `batch`, else of the policy
  const char* help;
};
constexpr KeyOption kPackOptions[] = {
    {"--context-window", "context_window", KeyKind::size, true, "Tokens of a window (128K)"},
    {"--sequences-per-step", "sequences_per_step", KeyKind::size, true, "Global batch in windows (4)"},
    {"--documents-per-step", "documents_per_step", KeyKind::size, true, "Global batch in whole documents"},
    {"--steps", "steps", KeyKind::size, true, "Global batches; the whole trace by default"},
    {"--loader", "loader", KeyKind::word, true,
     "carry or drop the rest of a document cut at a window border"},
    {"--micro-batch-size", "micro_batch_size", KeyKind::size, true, "Sequences of a micro-batch (1)"},
    {"--micro-batches", "micro_batches", KeyKind::size, false, "Micro-batches of a step"},
    {"--pack-length", "pack_length", KeyKind::size, false, "Tokens of a pack; the window by default"},
    {"--queues", "queues", KeyKind::size, false, "wlb: outlier queues"},
    {"--thresholds", "thresholds", KeyKind::list, false, "wlb: first length of each queue"},
    {"--search", "search", KeyKind::on, false, "wlb: search the thresholds"},
    {"--max-tokens", "max_tokens", KeyKind::size, false, "wlb: L_max, most tokens of a micro-batch"},
    {"--pack-window", "pack_window", KeyKind::size, false, "fixed-greedy: global batches packed together"},
    {"--chunk-size", "chunk_size", KeyKind::size, false, "chunkflow: tokens of a chunk"},
    {"--keep", "keep", KeyKind::size, false, "chunkflow: K"},
    {"--groups", "groups", KeyKind::word, false, "hbp: length:degree pairs, e.g. 16K:1,128K:8"},
    {"--candidates", "candidates", KeyKind::list, false, "hbp: pack lengths to choose groups from"},
    {"--curriculum-steps", "curriculum_steps", KeyKind::size, false,
     "hbp: first iterations from the shortest group"},
    {"--no-balance", "balance_batching", KeyKind::off, false,
     "hbp: leave packs in the order in which they were made"},
    {"--bucket-size", "bucket_size", KeyKind::size, false, "skrull, gds, round-robin: tokens of a CP rank"},
    {"--no-rollback", "rollback", KeyKind::off, false, "skrull, round-robin: do not roll back"},
    {"--placement-order", "placement_order", KeyKind::word, false,
     "round-robin: as-grouped or arrival order of a micro-batch's documents"},
    {"--rounds", "rounds", KeyKind::size, false, "isf: rounds"},
    {"--threshold", "threshold", KeyKind::size, false, "isf: least tokens of a pack that is kept"},
    {"--tokens-per-rank", "tokens_per_rank", KeyKind::size, false,
     "hybrid-cp, dynamic-cp, flexsp: what a rank holds"},
    {"--exact", "exact", KeyKind::on, false, "flexsp: the exact solver"},
    {"--equal-size", "equal_size", KeyKind::on, false, "karmarkar-karp: parts of equal size"},
    {"--no-shuffle", "shuffle", KeyKind::off, false, "Keep data order, and packs as created"},
    {"--pack-order", "pack_order", KeyKind::word, false,
     "ffd, ffs, bfd, bfs, spfhp, isf: finished packs shuffled (default) or created"},
    {"--order", "order", KeyKind::word, false, "Micro-batches of a lane: as-packed, descending or bell"},
    {"--time-limit", "time_limit", KeyKind::number, false, "Solvers: seconds a step"},
    {"--node-limit", "node_limit", KeyKind::size, false,
     "Solvers: nodes of branch and bound a step, instead of seconds"},
    {"--solver", "solver", KeyKind::word, false, "fixed-solver, varlen-solver: auto, cbc or highs"},
    {"--oversize", "oversize", KeyKind::word, false, "error, drop, truncate or split"},
    {"--verify", "verify", KeyKind::on, false, "Check the finished plan"},
};

nlohmann::json typed_value(const KeyOption& option, const std::string& text) {
  if (option.kind == KeyKind::number) return json_or_word(text, option.flag);
  if (option.kind != KeyKind::list) return text;
  nlohmann::json list = nlohmann::json::array();
  std::string item;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || text[at] == ',') {
      list.push_back(item);
      item.clear();
    } else {
      item += text[at];
    }
  }
  return list;
}

}  // namespace

void add_pack(CLI::App& app) {
  struct Arguments {
    PackCommandOptions options;
    std::string policy, compare, format = "table";
    std::vector<std::string> values = std::vector<std::string>(std::size(kPackOptions));
    std::vector<char> flags = std::vector<char>(std::size(kPackOptions));
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
  for (std::size_t i = 0; i < std::size(kPackOptions); ++i) {
    const KeyOption& option = kPackOptions[i];
    if (option.kind == KeyKind::on || option.kind == KeyKind::off)
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
    const KeyOption names{"", "", KeyKind::list, false, ""};
    for (const auto& name : typed_value(names, run.compare ? a->compare : a->policy))
      run.policies.push_back(name);
    for (std::size_t i = 0; i < std::size(kPackOptions); ++i) {
      const KeyOption& option = kPackOptions[i];
      nlohmann::json& object = option.batch ? run.batch : run.policy;
      if (a->flags[i] != 0) object[option.key] = option.kind == KeyKind::on;
      if (!a->values[i].empty()) object[option.key] = typed_value(option, a->values[i]);
    }
    bound_memory(memory_limit(run.max_memory_GB));
    run_pack_command(run, std::cout, std::cerr);
  });
}

}  // namespace equipoise
