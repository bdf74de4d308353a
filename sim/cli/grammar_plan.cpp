#include "sim/cli/grammar_plan.h"

#include <CLI/CLI.hpp>
#include <deque>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "sim/cli/command_doctor.h"
#include "sim/cli/command_explain.h"
#include "sim/cli/command_line.h"
#include "sim/cli/command_list.h"
#include "sim/cli/command_pack.h"
#include "sim/cli/command_schedule.h"
#include "sim/cli/command_shard.h"
#include "sim/cli/command_trace.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {
namespace {

void add_pack(CLI::App& program) {
  struct Arguments {
    PackCommandOptions options;
    std::string policy, compare;
    std::vector<std::string> values = std::vector<std::string>(pack_keys().size());
    std::deque<bool> flags = std::deque<bool>(pack_keys().size());
  };
  const auto a = std::make_shared<Arguments>();
  PackCommandOptions& options = a->options;
  CLI::App& command =
      add_command(program, "pack", "Only the plan of a policy, with its metrics",
                  "Example: equipoise pack wlb-128k --policy wlb --queues 2 --steps 20 --format json");
  command.add_option("trace", options.trace, "Trace file, or the name of a published distribution")
      ->required();
  command.add_option("--policy", a->policy, "See `equipoise list policies`");
  command.add_option("--compare", a->compare, "Policies side by side: A,B,C");
  command.add_option("--lanes", options.lanes, "Data-parallel replicas")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--context", options.context, "CP degree")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Seed of shuffles and of a drawn trace")->capture_default_str();
  command.add_option("--cost", options.cost,
                     "quadratic, flops (needs --model) or profiled (needs --model, --profile)");
  command.add_option("--model", options.model, "Built-in name, or a Hugging Face config.json");
  command.add_option("--profile", options.profile, "See `equipoise list profiles`");
  command.add_option("--column", options.column, "CSV column or JSONL field of the trace");
  add_memory_option(command, options.memory);
  add_format_option(command, options.format);
  for (std::size_t i = 0; i < pack_keys().size(); ++i) {
    const PackKey& key = pack_keys()[i];
    if (key.kind == ParameterKind::flag)
      command.add_flag(key.flag, a->flags[i], key.help);
    else
      command.add_option(key.flag, a->values[i], key.help);
  }
  command.callback([a] {
    PackCommandOptions run = a->options;
    if (a->policy.empty() == a->compare.empty())
      throw UserError("pack: expected --policy NAME or --compare A,B,C");
    run.compare = !a->compare.empty();
    for (const auto& name : list_of_words(run.compare ? a->compare : a->policy)) run.policies.push_back(name);
    for (std::size_t i = 0; i < pack_keys().size(); ++i) {
      const PackKey& key = pack_keys()[i];
      nlohmann::json& object = key.batch ? run.batch : run.policy;
      if (a->flags[i]) object[key.key] = key.value;
      if (!a->values[i].empty()) object[key.key] = typed_value(key, a->values[i]);
    }
    bound_memory(run.memory);
    run_pack_command(run, std::cout, std::cerr);
  });
}

void add_shard(CLI::App& program) {
  const auto options = std::make_shared<ShardCommandOptions>();
  CLI::App& command =
      add_command(program, "shard", "Where the queries of one micro-batch sit on its CP ranks",
                  "Example: equipoise shard --lengths 5000,3000 --cp 4 --policy adaptive --model llama2-7b "
                  "--profile h100-sxm");
  add_lengths(command, "--lengths", options->lengths,
              "Documents of the micro-batch, in order: 5000,3000 or 4K,128K")
      ->required();
  command.add_option("--cp", options->ranks, "Context-parallel ranks")->required();
  command.add_option("--policy", options->policy, "See `equipoise list policies`")->capture_default_str();
  command
      .add_option("--remainder", options->remainder,
                  "per-document, where 2 x CP does not divide: slots, tail or pad")
      ->capture_default_str();
  command.add_option("--pad", options->pad, "per-sequence, where 2 x CP does not divide: error or tail")
      ->capture_default_str();
  add_size(command, "--tile", options->tile,
           "Query tile that costs are rounded up to without a profile (128)");
  add_size(command, "--block", options->block,
           "heap-dispatch, snake, block-placement: tokens of a query block (128)");
  command.add_option("--top-p", options->top_p, "heap-dispatch: share of the CP ranks asked for each block")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--tolerance", options->tolerance,
                  "block-placement: pairs of a rank above the mean, as a share")
      ->check(CLI::Range(0.0, 1.0));
  add_size(command, "--bucket-size", options->bucket_size, "dacp: tokens that a CP rank holds");
  command.add_option("--cost", options->cost, "dacp: quadratic, flops (default; needs --model) or profiled");
  command.add_option("--model", options->model, "Built-in name, or a Hugging Face config.json");
  command.add_option("--profile", options->profile, "Predicts seconds; see `equipoise list profiles`");
  add_memory_option(command, options->memory);
  add_format_option(command, options->format);
  command.callback([options] {
    bound_memory(options->memory);
    shard_command(*options, std::cout);
  });
}

void add_schedule(CLI::App& program) {
  const auto options = std::make_shared<ScheduleOptions>();
  CLI::App& command =
      add_command(program, "schedule", "Draw one pipeline and its numbers, with time = length",
                  "Example: equipoise schedule --schedule state-aware-1f1b --stages 4 --lengths 1,1,2,4 "
                  "--chunk-size 2 --keep 1");
  command.add_option("--schedule", options->schedule, "See `equipoise list schedules`")->required();
  command.add_option("--stages", options->stages, "Pipeline stages")->required();
  add_lengths(command, "--lengths", options->lengths, "Micro-batches; documents where --chunk-size is given")
      ->required();
  add_size(command, "--chunk-size", options->chunk_size, "ChunkFlow: tokens of a chunk");
  command.add_option("--keep", options->keep, "ChunkFlow's K: chunks of a group that keep activations")
      ->capture_default_str();
  command.add_flag("--strict-keep", options->strict_keep, "Never hold K + 1 chunks of a group; slower");
  command
      .add_option("--virtual-stages", options->virtual_stages, "Model chunks of a stage (interleaved-1f1b)")
      ->capture_default_str();
  command.add_flag(
      "--pairs", options->pairs,
      "Issue a forward and the backward of another micro-batch together (expert_overlap dualpipe)");
  command.add_option("--backward-ratio", options->backward_ratio, "Backward time / forward time")
      ->capture_default_str();
  command.add_option("--p2p", options->p2p, "Time of a hop between two stages")->capture_default_str();
  command.add_option("--profile", options->profile,
                     "Times from a profile, in seconds (table: ms), not from lengths");
  only_with(
      "--profile",
      command.add_option("--model", options->model, "With --profile: the model")->capture_default_str());
  only_with(
      "--profile",
      command.add_option("--tensor", options->tensor, "With --profile: tensor-parallel GPUs of a stage")
          ->capture_default_str());
  add_memory_option(command, options->memory);
  add_format_option(command, options->format);
  command.callback([options] {
    bound_memory(options->memory);
    options->columns = terminal_columns(options->columns);
    options->color = colors_wanted();
    schedule_command(*options, std::cout, std::cerr);
  });
}

void add_trace_info(CLI::App& trace) {
  const auto options = std::make_shared<TraceInfoOptions>();
  CLI::App& command = add_command(trace, "info", "Quantiles, histogram and profile by position of a trace",
                                  "Example: equipoise trace info corpus_text_document.idx");
  command
      .add_option("trace", options->trace, "Lengths: text, .gz, .zst, .csv, .jsonl, .npy, .idx, .ds.index")
      ->required();
  command.add_option("--column", options->column, "CSV column (name or index) or JSONL field");
  command.add_option("--input-format", options->input_format, "Overrides what the file looks like")
      ->capture_default_str();
  add_size(command, "--context-window", options->context_window, "Context window of the profile by position")
      ->default_str("128K");
  command.add_option("--bins", options->bins, "Bins of the profile by position")->capture_default_str();
  add_format_option(command, options->format);
  command.callback([options] {
    bound_memory(default_memory_limit());
    trace_info_command(*options, std::cout);
  });
}

void add_trace_convert(CLI::App& trace) {
  const auto options = std::make_shared<TraceConvertOptions>();
  CLI::App& command = add_command(
      trace, "convert", "Rewrite traces, joined or mixed, as text or .npy",
      "Example: equipoise trace convert code.npy prose.csv --weights 0.3,0.7 --out mixed.txt.zst");
  command.add_option("traces", options->inputs, "One or more traces")->required();
  command.add_option("--out", options->out, "lengths.txt or .npy, and .gz or .zst after it")->required();
  command.add_option("--weights", options->weights, "Mix by these shares of tokens, one per trace")
      ->delimiter(',');
  add_size(command, "--longest", options->longest, "Drop documents above so many tokens");
  command.add_option("--documents", options->documents, "Stop after so many (0: all)")->capture_default_str();
  command.add_option("--seed", options->seed, "Seed of the mixture")->capture_default_str();
  command.add_option("--column", options->column, "CSV column (name or index) or JSONL field");
  command.add_option("--input-format", options->input_format, "Overrides what the files look like")
      ->capture_default_str();
  command.callback([options] {
    bound_memory(default_memory_limit());
    trace_convert_command(*options, std::cerr);
  });
}

void add_trace_synth(CLI::App& trace) {
  const auto options = std::make_shared<TraceSynthOptions>();
  CLI::App& command = add_command(
      trace, "synth", "Draw a trace from a published length distribution",
      "Example: equipoise trace synth --distribution wlb-128k --documents 100000 --out wlb.txt.zst");
  command.add_option("--distribution", options->distribution, "See `equipoise list traces`")->required();
  add_size(command, "--documents", options->documents, "How many lengths")
      ->default_str(std::to_string(options->documents));
  command.add_option("--seed", options->seed, "Seed of the draws")->capture_default_str();
  command.add_option("--out", options->out, "File to write; without it, one length a line");
  add_memory_option(command, options->memory);
  command.callback([options] {
    bound_memory(options->memory);
    trace_synth_command(*options, std::cout, std::cerr);
  });
}

void add_trace_record(CLI::App& trace) {
  CLI::App& command =
      add_command(trace, "record", "Tokenise real text and write its document lengths",
                  "Example: equipoise trace record ~/corpus --out corpus.txt.zst\n"
                  "All options go to traces/record.py; `equipoise trace record --help` prints them.");
  command.prefix_command()->set_help_flag();  // all words are of the recorder, --help as well
  command.callback([&command] { trace_record_command(command.remaining()); });
}

void add_trace(CLI::App& program) {
  CLI::App& command =
      add_command(program, "trace", "Inspect, make and convert traces of document lengths", "");
  command.require_subcommand(1);
  add_trace_info(command);
  add_trace_convert(command);
  add_trace_synth(command);
  add_trace_record(command);
}

void add_list(CLI::App& program) {
  struct Arguments {
    std::string what;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& command = add_command(
      program, "list", "What there is: policies, schedules, models, profiles, frameworks, traces, schema",
      "Example: equipoise list policies");
  command
      .add_option("what", arguments->what,
                  "policies, schedules, models, profiles, frameworks, traces or schema")
      ->required();
  add_format_option(command, arguments->format);
  command.callback([arguments] { run_list_command(arguments->what, arguments->format, std::cout); });
}

void add_explain(CLI::App& program) {
  struct Arguments {
    std::string word;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& command = add_command(
      program, "explain", "What a key, a column or a policy means, what it may be, and where it comes from",
      "Example: equipoise explain parallel.context\n"
      "         equipoise explain chunkflow.chunk_size");
  command.add_option(
      "word", arguments->word,
      "Key of a study, column of a result, policy, its option, or another name of `equipoise list`");
  add_format_option(command, arguments->format, "table or json");
  command.callback([arguments] { run_explain_command(arguments->word, arguments->format, std::cout); });
}

void add_doctor(CLI::App& program, int& status) {
  const auto format = std::make_shared<Format>(Format::table);
  CLI::App& command =
      add_command(program, "doctor",
                  "What this machine has, and whether the program works on it: exit 1 where something failed",
                  "Example: equipoise doctor --format json");
  add_format_option(command, *format, "table or json");
  command.callback([format, &status] { status = run_doctor_command(*format, EQUIPOISE_VERSION, std::cout); });
}

}  // namespace

void add_plan_commands(CLI::App& program, int& status) {
  for (const auto add : {add_pack, add_shard, add_schedule, add_trace, add_list, add_explain}) add(program);
  add_doctor(program, status);
}

}  // namespace equipoise
