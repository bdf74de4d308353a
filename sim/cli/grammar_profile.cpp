#include "sim/cli/grammar_profile.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "policies/base/error.h"
#include "sim/cli/command_fit.h"
#include "sim/cli/command_line.h"
#include "sim/cli/command_predict.h"
#include "sim/cli/command_profile.h"
#include "sim/cli/command_profiles.h"
#include "sim/framework/framework.h"

namespace equipoise {
namespace {

void add_profile(CLI::App& program, int& status) {
  const auto options = std::make_shared<ProfileOptions>();
  measure::SessionOptions& session = options->session;
  CLI::App& command =
      add_command(program, "profile", "Measure this machine's kernels: samples for `equipoise fit`",
                  "Example: equipoise profile --device cpu --minutes 3 --out samples.json");
  command.add_option("--device", session.device, "cpu or cuda")->capture_default_str();
  command
      .add_option("--minutes", session.minutes,
                  "Time budget; what no profile can do without comes first, whatever it takes")
      ->capture_default_str();
  command.add_option("--out", session.out, "Samples file; <file>.journal keeps finished samples")
      ->capture_default_str();
  command.add_flag("--resume", session.resume, "Keep the samples of the journal and go on");
  command.add_option("--models", session.models, "GEMM shapes of these models only")->delimiter(',');
  command
      .add_option("--only", session.families,
                  "Some of attention, gemm, elementwise, copy, launch; under mpirun collective")
      ->delimiter(',');
  command
      .add_option("--lengths", options->lengths, "Documents of packed mixes: a trace file or a distribution")
      ->capture_default_str();
  command.add_option("--seed", session.seed, "Seed of the shapes that are drawn at random")
      ->capture_default_str();
  command.add_flag("--quiet", session.quiet, "No progress");
  command.callback(
      [options, &status] { status = run_profile(*options, std::cout, std::cerr, stop_on_interrupt()); });
}

void add_fit_steps_options(CLI::App& command, FitStepsOptions& steps) {
  command.add_option(
      "--steps", steps.tables.rows,
      "Measured training steps (.csv), one per row: gpu, model_id, seq_len, tp, cp, pp, dp, mbs, "
      "gbs_seqs, step_time_s; see docs/how-to/fit-your-own-steps.md");
  CLI::Option* const with_steps[] = {
      command.add_option("--models", steps.tables.models,
                         "With --steps: shapes of the rows' model_id (.csv); built-in models otherwise"),
      command.add_option("--preset", steps.tables.preset,
                         "With --steps: the framework that ran; see `equipoise list frameworks`"),
      command.add_option(
          "--profile", steps.tables.profile,
          "With --steps: the GPU of all rows; a100-, h100-, h200-, h800- or b200-sxm by the gpu "
          "column otherwise, h100-500w where it says 500W"),
      command.add_option("--slowdowns", steps.slowdowns,
                         "With --steps: no fit, print the rows as G,A,E (slowdowns of GEMM, attention, "
                         "elementwise) or `preset` predict them"),
      add_jobs_option(command, steps.jobs, "With --steps: threads; all cores by default")};
  for (CLI::Option* option : with_steps) option->needs("--steps");
}

void add_fit(CLI::App& program) {
  struct Arguments {
    FitCommandOptions samples;
    FitStepsOptions steps;
    std::string out;
  };
  const auto arguments = std::make_shared<Arguments>();
  FitCommandOptions& options = arguments->samples;
  arguments->steps.tables.preset = kDefaultFramework;
  CLI::App& command = add_command(
      program, "fit",
      "Fit a profile to samples, or a framework preset to measured steps, and say how wrong it is",
      "Example: equipoise fit --samples cpu.samples.json --out cpu.json\n"
      "         equipoise fit --samples all_reduce_perf.txt --base h100-sxm --nic-GBps 50 --out mine.json\n"
      "         equipoise fit --steps my_runs.csv --preset megatron --out mine.json");
  command.add_option(
      "--samples,samples", options.samples,
      "Samples that `profile` wrote (.json; default samples.json), output of nccl-tests, traces of "
      "torch.profiler (.json, .gz), or tables (.csv)");
  command.add_option("--recipe", options.recipe,
                     "Which rows make which table; needed for .csv without --base");
  command.add_option("--base", options.base,
                     "A profile to borrow from: the samples calibrate its tables, the rest stays as it is");
  command.add_flag("--all", options.all,
                   "With --base: print the errors of the tables that no sample moved, too");
  command.add_option("--network", options.network,
                     "What to call the fabric of samples between nodes (measured by default)");
  command.add_option("--base-network", options.base_network,
                     "With --base: which of its networks to begin with; its default otherwise");
  command
      .add_option("--nic-GBps", options.nic_GBps,
                  "NIC rate of one GPU, one direction, of samples between nodes")
      ->check(CLI::Range(1e-3, 1e5));
  command.add_option("--document-histogram", options.document_histogram,
                     "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  command.add_option("--out", arguments->out, "The file to write; profile.json, with --steps framework.json");
  add_fit_steps_options(command, arguments->steps);
  command.callback([arguments] {
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

void add_profiles(CLI::App& program) {
  struct Arguments {
    std::string profile;
    Format format = Format::table;
  };
  const auto arguments = std::make_shared<Arguments>();
  const std::string example = "Example: equipoise profiles show h100-sxm";
  CLI::App& command = add_command(program, "profiles", "List and show the shipped profiles", example);
  add_format_option(command, arguments->format);
  CLI::App& list =
      add_command(command, "list", "The shipped profiles, one per line (also without `list`)", example);
  add_format_option(list, arguments->format);
  CLI::App& show =
      add_command(command, "show", "Facts, provenance, ranges and errors of one profile", example);
  show.add_option("profile", arguments->profile, "A shipped profile's name or a .json file")->required();
  add_format_option(show, arguments->format, "table or json");
  command.callback([arguments] {  // for `profiles` alone, and after `list` and `show`
    if (arguments->profile.empty())
      profiles_command(arguments->format, std::cout);
    else
      profiles_show_command(arguments->profile, arguments->format, std::cout);
  });
}

void add_predict(CLI::App& program) {
  const auto options = std::make_shared<PredictOptions>();
  CLI::App& command = add_command(
      program, "predict", "Predict the rows of a table and print the errors",
      "Example: equipoise predict --profile h100-sxm --rows gemm.csv\n\n"
      "Columns of --rows, in any order; others are kept, and select kernels where a profile says so (gpu, "
      "kernel, dtype, backend):\n"
      "  attention    head_dim, mask (causal or full), seq_q, pass (fwd, bwd, fwd+bwd); seq_kv, batch, "
      "n_q_heads, n_kv_heads, layout, notes; time_ms or tflops\n"
      "  gemm         M, N, K; dtype; time_ms or tflops\n"
      "  elementwise  rows, cols, op; pass; gbytes_per_s; time_ms\n"
      "  collective   op, size_bytes, n_gpus; n_nodes, gpus_per_node, inter_node_network; time_us or "
      "busbw_GBps; exchanges of DeepEP and of NICs: algbw_GBps, software\n"
      "What can be missing is after the semicolon. Added: predicted_ms, and error where a time is "
      "given.");
  command.add_option("--profile", options->profile, "A shipped profile's name or a .json file")->required();
  command.add_option("--rows", options->rows, "Attention, GEMM, elementwise or collective rows (.csv)")
      ->required();
  command.add_option("--kernel", options->kernel, "Attention kernel of the profile to use for all rows");
  command.add_option("--network", options->network, "Network of the profile to use for all rows");
  command.add_option("--nic-GBps", options->nic_GBps, "NIC rate of one GPU, one direction");
  command.add_option("--document-histogram", options->document_histogram,
                     "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  add_format_option(command, options->format, "csv: the rows; table: the errors by group; json: both");
  command.callback([options] { predict_command(*options, std::cout, std::cerr); });
}

}  // namespace

void add_profile_commands(CLI::App& program, int& status) {
  add_profile(program, status);
  add_fit(program);
  add_profiles(program);
  add_predict(program);
}

}  // namespace equipoise
