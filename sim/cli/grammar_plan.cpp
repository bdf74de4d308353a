// The grammar of the commands about the parts of a study (pack, shard, schedule, trace, list, explain) and
// about profiles (profile, fit, profiles, predict).
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "sim/cli/command_line.h"
#include "sim/cli/plan_commands.h"
#include "sim/framework/framework.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/pack_request.h"

namespace equipoise {

Command grammar_of_pack() {
  struct Arguments {
    PackCommandOptions options;
    std::string policy, compare;
    std::vector<std::string> values = std::vector<std::string>(pack_keys().size());
    std::deque<bool> flags = std::deque<bool>(pack_keys().size());
  };
  const auto a = std::make_shared<Arguments>();
  PackCommandOptions& options = a->options;
  Command command{"pack", "Only the plan of a policy, with its metrics",
                  "Example: equipoise pack wlb-128k --policy wlb --queues 2 --steps 20 --format json"};
  command.add("trace", options.trace, "Trace file, or the name of a published distribution").required();
  command.add("--policy", a->policy, "See `equipoise list policies`");
  command.add("--compare", a->compare, "Policies side by side: A,B,C");
  command.add("--lanes", options.lanes, "Data-parallel replicas").range(1, 1 << 20).shows_default();
  command.add("--context", options.context, "CP degree").range(1, 1 << 16).shows_default();
  command.add("--seed", options.seed, "Of shuffles and of a drawn trace").shows_default();
  command.add("--cost", options.cost,
              "quadratic, flops (needs --model) or profiled (needs --model, --profile)");
  command.add("--model", options.model, "Built-in name, or a Hugging Face config.json");
  command.add("--profile", options.profile, "See `equipoise list profiles`");
  command.add("--column", options.column, "CSV column or JSONL field of the trace");
  add_memory_option(command, options.max_memory_GB);
  add_format_option(command, options.format);
  for (std::size_t i = 0; i < pack_keys().size(); ++i) {
    const PackKey& key = pack_keys()[i];
    if (key.kind == ParameterKind::flag)
      command.add(key.flag, a->flags[i], key.help);
    else
      command.add(key.flag, a->values[i], key.help);
  }
  return command.doing([a] {
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
    bound_memory(memory_limit(run.max_memory_GB));
    run_pack_command(run, std::cout, std::cerr);
  });
}

Command grammar_of_shard() {
  const auto options = std::make_shared<ShardCommandOptions>();
  Command command{"shard", "Where the queries of one micro-batch sit on its CP ranks",
                  "Example: equipoise shard --lengths 5000,3000 --cp 4 --policy adaptive --model llama2-7b "
                  "--profile h100-sxm"};
  command.add("--lengths", options->lengths, "Documents of the micro-batch, in order: 5000,3000 or 4K,128K")
      .required();
  command.add("--cp", options->ranks, "Context-parallel ranks").required();
  command.add("--policy", options->policy, "See `equipoise list policies`").shows_default();
  command
      .add("--remainder", options->remainder,
           "per-document, where 2 x CP does not divide: slots, tail or pad")
      .shows_default();
  command.add("--pad", options->pad, "per-sequence, where 2 x CP does not divide: error or tail")
      .shows_default();
  command.add("--tile", options->tile, "Query tile that costs are rounded up to without a profile (128)")
      .size();
  command
      .add("--block", options->block, "heap-dispatch, snake, block-placement: tokens of a query block (128)")
      .size();
  command.add("--top-p", options->top_p, "heap-dispatch: share of the CP ranks asked for each block")
      .range(0, 1);
  command
      .add("--tolerance", options->tolerance, "block-placement: pairs of a rank above the mean, as a share")
      .range(0, 1);
  command.add("--bucket-size", options->bucket_size, "dacp: tokens that a CP rank holds").size();
  command.add("--cost", options->cost, "dacp: quadratic, flops (default; needs --model) or profiled");
  command.add("--model", options->model, "Built-in name, or a Hugging Face config.json");
  command.add("--profile", options->profile, "Predicts seconds; see `equipoise list profiles`");
  add_memory_option(command, options->max_memory_GB);
  add_format_option(command, options->format);
  return command.doing([options] {
    bound_memory(memory_limit(options->max_memory_GB));
    shard_command(*options, std::cout);
  });
}

Command grammar_of_schedule() {
  const auto options = std::make_shared<ScheduleOptions>();
  Command command{"schedule", "Draw one pipeline and its numbers, with time = length",
                  "Example: equipoise schedule --schedule state-aware-1f1b --stages 4 --lengths 1,1,2,4 "
                  "--chunk-size 2 --keep 1"};
  command.add("--schedule", options->schedule, "See `equipoise list schedules`").required();
  command.add("--stages", options->stages, "Pipeline stages").required();
  command.add("--lengths", options->lengths, "Micro-batches; documents where --chunk-size is given")
      .required();
  command.add("--chunk-size", options->chunk_size, "ChunkFlow: tokens of a chunk").size();
  command.add("--keep", options->keep, "ChunkFlow's K: chunks of a group that keep activations")
      .shows_default();
  command.add("--strict-keep", options->strict_keep, "Never hold K + 1 chunks of a group; slower");
  command.add("--virtual-stages", options->virtual_stages, "Model chunks of a stage (interleaved-1f1b)")
      .shows_default();
  command.add("--pairs", options->pairs,
              "Issue a forward and the backward of another micro-batch together (expert_overlap dualpipe)");
  command.add("--backward-ratio", options->backward_ratio, "Backward time / forward time").shows_default();
  command.add("--p2p", options->p2p, "Time of a hop between two stages").shows_default();
  command.add("--profile", options->profile,
              "Times from a profile, in seconds (table: ms), not from lengths");
  command.add("--model", options->model, "With --profile: the model").shows_default().acting("--profile");
  command.add("--tensor", options->tensor, "With --profile: tensor-parallel GPUs of a stage")
      .shows_default()
      .acting("--profile");
  add_memory_option(command, options->max_memory_GB);
  add_format_option(command, options->format);
  return command.doing([options] {
    bound_memory(memory_limit(options->max_memory_GB));
    options->columns = terminal_columns();
    options->color = colors_wanted();
    schedule_command(*options, std::cout, std::cerr);
  });
}

namespace {

Command grammar_of_trace_info() {
  const auto options = std::make_shared<TraceInfoOptions>();
  Command command{"info", "Quantiles, histogram and profile by position of a trace",
                  "Example: equipoise trace info corpus_text_document.idx"};
  command.add("trace", options->trace, "Lengths: text, .gz, .zst, .csv, .jsonl, .npy, .idx, .ds.index")
      .required();
  command.add("--column", options->column, "CSV column (name or index) or JSONL field");
  command.add("--input-format", options->input_format, "Overrides what the file looks like").shows_default();
  command.add("--context-window", options->context_window, "Of the profile by position")
      .size()
      .shows_default("128K");
  command.add("--bins", options->bins, "Of the profile by position").shows_default();
  add_format_option(command, options->format);
  return command.doing([options] {
    bound_memory(default_memory_limit());
    trace_info_command(*options, std::cout);
  });
}

Command grammar_of_trace_convert() {
  const auto options = std::make_shared<TraceConvertOptions>();
  Command command{
      "convert", "Rewrite traces, joined or mixed, as text or .npy",
      "Example: equipoise trace convert code.npy prose.csv --weights 0.3,0.7 --out mixed.txt.zst"};
  command.add("traces", options->inputs, "One or more traces").required();
  command.add("--out", options->out, "lengths.txt or .npy, and .gz or .zst after it").required();
  command.add("--weights", options->weights, "Mix by these shares of tokens, one a trace").split();
  command.add("--longest", options->longest, "Leave out documents above so many tokens").size();
  command.add("--documents", options->documents, "Stop after so many (0: all)").shows_default();
  command.add("--seed", options->seed, "Of the mixture").shows_default();
  command.add("--column", options->column, "CSV column (name or index) or JSONL field");
  command.add("--input-format", options->input_format, "Overrides what the files look like").shows_default();
  return command.doing([options] {
    bound_memory(default_memory_limit());
    trace_convert_command(*options, std::cerr);
  });
}

Command grammar_of_trace_synth() {
  const auto options = std::make_shared<TraceSynthOptions>();
  Command command{
      "synth", "Draw a trace from a published length distribution",
      "Example: equipoise trace synth --distribution wlb-128k --documents 100000 --out wlb.txt.zst"};
  command.add("--distribution", options->distribution, "See `equipoise list traces`").required();
  command.add("--documents", options->documents, "How many lengths").size().shows_default();
  command.add("--seed", options->seed, "Of the draws").shows_default();
  command.add("--out", options->out, "File to write; without it, one length a line");
  add_memory_option(command, options->max_memory_GB);
  return command.doing([options] {
    bound_memory(memory_limit(options->max_memory_GB));
    trace_synth_command(*options, std::cout, std::cerr);
  });
}

Command grammar_of_trace_record() {
  const auto arguments = std::make_shared<std::vector<std::string>>();
  Command command{"record", "Tokenise real text and write its document lengths",
                  "Example: equipoise trace record ~/corpus --out corpus.txt.zst\n"
                  "All options go to traces/record.py; `equipoise trace record --help` prints them."};
  command.verbatim = arguments.get();
  return command.doing([arguments]() -> int { trace_record_command(*arguments); });
}

}  // namespace

Command grammar_of_trace() {
  Command command{"trace", "Inspect, make and convert traces of document lengths"};
  command.commands = {grammar_of_trace_info(), grammar_of_trace_convert(), grammar_of_trace_synth(),
                      grammar_of_trace_record()};
  return command;
}

Command grammar_of_list() {
  struct Arguments {
    std::string what;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  Command command{"list", "What there is: policies, schedules, models, profiles, frameworks, traces, schema",
                  "Example: equipoise list policies"};
  command.add("what", arguments->what, "policies, schedules, models, profiles, frameworks, traces or schema")
      .required();
  add_format_option(command, arguments->format);
  return command.doing([arguments] { run_list_command(arguments->what, arguments->format, std::cout); });
}

Command grammar_of_explain() {
  struct Arguments {
    std::string word;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  Command command{"explain", "What a key, a column or a policy means, what it may be, and where it comes from",
                  "Example: equipoise explain parallel.context\n"
                  "         equipoise explain chunkflow.chunk_size"};
  command.add("word", arguments->word,
              "Key of a study, column of a result, policy, its option, or another name of `equipoise list`");
  add_format_option(command, arguments->format, "table or json");
  return command.doing([arguments] { run_explain_command(arguments->word, arguments->format, std::cout); });
}

Command grammar_of_doctor(std::string_view version) {
  const auto format = std::make_shared<Format>(Format::table);
  Command command{"doctor",
                  "What this machine has, and whether the program works on it: exit 1 where something failed",
                  "Example: equipoise doctor --format json"};
  add_format_option(command, *format, "table or json");
  return command.doing([format, version] { return run_doctor_command(*format, version, std::cout); });
}

// --- Profiles

Command grammar_of_profile() {
  const auto options = std::make_shared<ProfileOptions>();
  measure::SessionOptions& session = options->session;
  Command command{"profile", "Measure this machine's kernels: samples for `equipoise fit`",
                  "Example: equipoise profile --device cpu --minutes 3 --out samples.json"};
  command.add("--device", session.device, "cpu or cuda").shows_default();
  command
      .add("--minutes", session.minutes,
           "Time budget; what no profile can do without comes first, whatever it takes")
      .shows_default();
  command.add("--out", session.out, "Samples file; <file>.journal keeps finished samples").shows_default();
  command.add("--resume", session.resume, "Keep the samples of the journal and go on");
  command.add("--models", session.models, "GEMM shapes of these models only").split();
  command
      .add("--only", session.families,
           "Of attention, gemm, elementwise, copy, launch; under mpirun collective")
      .split();
  command.add("--lengths", options->lengths, "Documents of packed mixes: a trace file or a distribution")
      .shows_default();
  command.add("--seed", session.seed, "Of the shapes that are drawn at random").shows_default();
  command.add("--quiet", session.quiet, "No progress");
  return command.doing(
      [options] { return run_profile(*options, std::cout, std::cerr, stop_on_interrupt()); });
}

namespace {

void add_fit_steps_options(Command& command, FitStepsOptions& steps) {
  const auto add = [&](const char* name, auto& variable, const char* help) -> Argument& {
    Argument& argument = command.add(name, variable, help);
    argument.needs = "--steps";
    return argument;
  };
  command.add("--steps", steps.tables.rows,
              "Measured training steps (.csv), one a row: gpu, model_id, seq_len, tp, cp, pp, dp, mbs, "
              "gbs_seqs, step_time_s; see sim/calibration/README.md");
  add("--models", steps.tables.models,
      "With --steps: shapes of the rows' model_id (.csv); built-in models otherwise");
  add("--preset", steps.tables.preset,
      "With --steps: the framework that ran; see `equipoise list frameworks`");
  add("--profile", steps.tables.profile,
      "With --steps: the GPU of all rows; a100-, h100-, h200-, h800- or b200-sxm by the gpu column otherwise, h100-500w where it says 500W");
  add("--slowdowns", steps.slowdowns,
      "With --steps: no fit, print the rows as G,A,E (slowdowns of GEMM, attention, elementwise) or `preset` "
      "predict them");
  add("--jobs", steps.jobs, "With --steps: threads; all cores by default").range(0, 4096);
}

}  // namespace

Command grammar_of_fit() {
  struct Arguments {
    FitCommandOptions samples;
    FitStepsOptions steps;
    std::string out;
  };
  const auto arguments = std::make_shared<Arguments>();
  FitCommandOptions& options = arguments->samples;
  arguments->steps.tables.preset = kDefaultFramework;
  Command command{
      "fit", "Fit a profile to samples, or a framework preset to measured steps, and say how wrong it is",
      "Example: equipoise fit --samples cpu.samples.json --out cpu.json\n"
      "         equipoise fit --samples all_reduce_perf.txt --base h100-sxm --nic-GBps 50 --out mine.json\n"
      "         equipoise fit --steps my_runs.csv --preset megatron --out mine.json"};
  command.add("--samples,samples", options.samples,
              "Samples that `profile` wrote (.json; default samples.json), output of nccl-tests, traces of "
              "torch.profiler (.json, .gz), or tables (.csv)");
  command.add("--recipe", options.recipe, "Which rows make which table; needed for .csv without --base");
  command.add("--base", options.base,
              "A profile to borrow from: the samples mend its tables, the rest stays as it is");
  command.add("--network", options.network,
              "What to call the fabric of samples between nodes (measured by default)");
  command.add("--base-network", options.base_network,
              "With --base: which of its networks to begin with; its default otherwise");
  command.add("--nic-GBps", options.nic_GBps, "NIC rate of one GPU, one direction, of samples between nodes")
      .range(1e-3, 1e5);
  command.add("--document-histogram", options.document_histogram,
              "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  command.add("--out", arguments->out, "The file to write; profile.json, with --steps framework.json");
  add_fit_steps_options(command, arguments->steps);
  return command.doing([arguments] {
    auto& [samples, steps, out] = *arguments;
    if (!steps.tables.rows.empty()) {
      if (!samples.samples.empty()) throw UserError("--steps: expected without --samples, found both");
      if (!out.empty()) steps.out = out;
      fit_steps_command(steps, std::cout, std::cerr);
      return;
    }
    if (samples.samples.empty()) samples.samples = {"samples.json"};
    if (!out.empty()) samples.out = out;
    fit_command(samples, std::cout, std::cerr);
  });
}

Command grammar_of_profiles() {
  struct Arguments {
    std::string profile;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  const std::string example = "Example: equipoise profiles show h100-sxm";
  Command list{"list", "The shipped profiles, one line each (also without `list`)", example};
  add_format_option(list, arguments->format);
  Command show{"show", "Facts, provenance, ranges and errors of one profile", example};
  show.add("profile", arguments->profile, "A shipped profile's name or a .json file").required();
  add_format_option(show, arguments->format, "table or json");
  Command command{"profiles", "List and show the shipped profiles", example};
  add_format_option(command, arguments->format);
  command.commands = {list, show};
  return command.doing([arguments] {
    if (arguments->profile.empty())
      profiles_command(arguments->format, std::cout);
    else
      profiles_show_command(arguments->profile, arguments->format, std::cout);
  });
}

Command grammar_of_predict() {
  const auto options = std::make_shared<PredictOptions>();
  Command command{
      "predict", "Predict the rows of a table and print the errors",
      "Example: equipoise predict --profile h100-sxm --rows gemm.csv\n\n"
      "Columns of --rows, in any order; others are kept, and select kernels where a profile says so (gpu, "
      "kernel, dtype, backend):\n"
      "  attention    head_dim, mask (causal or full), seq_q, pass (fwd, bwd, fwd+bwd); seq_kv, batch, "
      "n_q_heads, n_kv_heads, layout, notes; time_ms or tflops\n"
      "  gemm         M, N, K; dtype; time_ms or tflops\n"
      "  elementwise  rows, cols, op; pass; gbytes_per_s; time_ms\n"
      "  collective   op, size_bytes, n_gpus; n_nodes, gpus_per_node, inter_node_network; time_us or "
      "busbw_GBps; exchanges of DeepEP and of NICs: algbw_GBps, software\n"
      "What can be missing stands after the semicolon. Added: predicted_ms, and error where a time is "
      "given."};
  command.add("--profile", options->profile, "A shipped profile's name or a .json file").required();
  command.add("--rows", options->rows, "Attention, GEMM, elementwise or collective rows (.csv)").required();
  command.add("--kernel", options->kernel, "Attention kernel of the profile to use for all rows");
  command.add("--network", options->network, "Network of the profile to use for all rows");
  command.add("--nic-GBps", options->nic_GBps, "NIC rate of one GPU, one direction");
  command.add("--document-histogram", options->document_histogram,
              "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  add_format_option(command, options->format, "csv: the rows; table: the errors by group; json: both");
  return command.doing([options] { predict_command(*options, std::cout, std::cerr); });
}

}  // namespace equipoise
