// The grammar of `equipoise trace`.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "sim/cli/grammar_parts.h"
#include "sim/cli/plan_commands.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {
namespace {

void add_trace_info(CLI::App& trace) {
  struct Arguments {
    TraceInfoOptions options;
    std::string context_window = "128K";
    std::string format = "table";
  };
  CLI::App* command = trace.add_subcommand("info", "Quantiles, histogram and profile by position of a trace");
  command->footer("Example: equipoise trace info corpus_text_document.idx");
  const auto arguments = std::make_shared<Arguments>();
  TraceInfoOptions& options = arguments->options;
  command->add_option("trace", options.trace, "Lengths: text, .gz, .zst, .csv, .jsonl, .npy, .idx, .ds.index")
      ->required();
  command->add_option("--column", options.column, "CSV column (name or index) or JSONL field");
  command->add_option("--input-format", options.input_format, "Overrides what the file looks like")
      ->capture_default_str();
  command->add_option("--context-window", arguments->context_window, "Of the profile by position")
      ->capture_default_str();
  command->add_option("--bins", options.bins, "Of the profile by position")->capture_default_str();
  command->add_option("--format", arguments->format, "table, json or csv")->capture_default_str();
  command->callback([arguments] {
    TraceInfoOptions run = arguments->options;
    run.context_window = parse_length(arguments->context_window, "--context-window");
    run.format = parse_format(arguments->format);
    bound_memory(default_memory_limit());
    trace_info_command(run, std::cout);
  });
}

void add_trace_convert(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand("convert", "Rewrite traces, joined or mixed, as text or .npy");
  command->footer(
      "Example: equipoise trace convert code.npy prose.csv --weights 0.3,0.7 --out mixed.txt.zst");
  const auto options = std::make_shared<TraceConvertOptions>();
  const auto longest = std::make_shared<std::string>();
  command->add_option("traces", options->inputs, "One or more traces")->required();
  command->add_option("--out", options->out, "lengths.txt or .npy, and .gz or .zst after it")->required();
  command->add_option("--weights", options->weights, "Mix by these shares of tokens, one a trace")
      ->delimiter(',');
  command->add_option("--longest", *longest, "Leave out documents above so many tokens");
  command->add_option("--documents", options->documents, "Stop after so many (0: all)")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the mixture")->capture_default_str();
  command->add_option("--column", options->column, "CSV column (name or index) or JSONL field");
  command->add_option("--input-format", options->input_format, "Overrides what the files look like")
      ->capture_default_str();
  command->callback([options, longest] {
    if (!longest->empty()) options->longest = parse_length(*longest, "--longest");
    bound_memory(default_memory_limit());
    trace_convert_command(*options, std::cerr);
  });
}

void add_trace_synth(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand("synth", "Draw a trace from a published length distribution");
  command->footer(
      "Example: equipoise trace synth --distribution wlb-128k --documents 100000 --out wlb.txt.zst");
  const auto options = std::make_shared<TraceSynthOptions>();
  command->add_option("--distribution", options->distribution, "See `equipoise list traces`")->required();
  const auto documents = std::make_shared<std::string>("1000000");
  command->add_option("--documents", *documents, "How many lengths")->capture_default_str();
  command->add_option("--seed", options->seed, "Of the draws")->capture_default_str();
  command->add_option("--out", options->out, "File to write; without it, one length a line");
  add_memory_option(*command, options->max_memory_GB);
  command->callback([options, documents] {
    bound_memory(memory_limit(options->max_memory_GB));
    options->documents = parse_length(*documents, "--documents");
    trace_synth_command(*options, std::cout, std::cerr);
  });
}

void add_trace_record(CLI::App& trace) {
  CLI::App* command = trace.add_subcommand("record", "Tokenise real text and write its document lengths");
  command->footer(
      "Example: equipoise trace record ~/corpus --out corpus.txt.zst\n"
      "All options go to traces/record.py; `equipoise trace record -- --help` prints them.");
  command->prefix_command();
  command->callback([command] { trace_record_command({command->remaining()}); });
}

}  // namespace

void add_trace(CLI::App& app) {
  CLI::App* command = app.add_subcommand("trace", "Inspect, make and convert traces of document lengths");
  command->require_subcommand(1);
  add_trace_info(*command);
  add_trace_convert(*command);
  add_trace_synth(*command);
  add_trace_record(*command);
}

}  // namespace equipoise
