// The grammar of the commands about profiles: profile, fit, profiles, predict.
#include <iostream>
#include <memory>
#include <string>

#include "policies/base/error.h"
#include "sim/cli/command_line.h"
#include "sim/cli/profile_commands.h"
#include "sim/framework/framework.h"

namespace equipoise {

Command grammar_of_profile() {
  const auto options = std::make_shared<ProfileOptions>();
  measure::SessionOptions& session = options->session;
  Command command{"profile", "Measure this machine's kernels: samples for `equipoise fit`",
                  "Example: equipoise profile --device cpu --minutes 3 --out samples.json"};
  command.add("--device", session.device, "cpu or cuda").shows_default();
  command.add("--minutes", session.minutes, "Time budget; the most telling shapes come first")
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
  command.run = [options] { return run_profile(*options, std::cout, std::cerr, stop_on_interrupt()); };
  return command;
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
      "With --steps: the GPU of all rows; a100-, h100-, h200- or h800-sxm by the gpu column otherwise");
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
  command.add("--nic-GBps", options.nic_GBps,
              "NIC rate of one GPU, one direction, that samples between nodes had");
  command.add("--document-histogram", options.document_histogram,
              "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  command.add("--out", arguments->out, "The file to write; profile.json, with --steps framework.json");
  add_fit_steps_options(command, arguments->steps);
  command.run = [arguments] {
    auto& [samples, steps, out] = *arguments;
    if (!steps.tables.rows.empty()) {
      if (!samples.samples.empty()) throw UserError("--steps: expected without --samples, found both");
      if (!out.empty()) steps.out = out;
      fit_steps_command(steps, std::cout, std::cerr);
      return 0;
    }
    if (samples.samples.empty()) samples.samples = {"samples.json"};
    if (!out.empty()) samples.out = out;
    fit_command(samples, std::cout, std::cerr);
    return 0;
  };
  return command;
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
  command.run = [arguments] {
    if (arguments->profile.empty())
      profiles_command(arguments->format, std::cout);
    else
      profiles_show_command(arguments->profile, arguments->format, std::cout);
    return 0;
  };
  return command;
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
  command.run = [options] {
    predict_command(*options, std::cout, std::cerr);
    return 0;
  };
  return command;
}

}  // namespace equipoise
