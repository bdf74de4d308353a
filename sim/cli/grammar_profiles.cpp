// The part of the grammar that shows, makes and tries profiles.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "policies/base/error.h"
#include "sim/cli/command_fit.h"
#include "sim/cli/command_fit_steps.h"
#include "sim/cli/command_predict.h"
#include "sim/cli/command_profiles.h"
#include "sim/cli/grammar_parts.h"
#include "sim/framework/framework.h"

namespace equipoise {

void add_profiles(CLI::App& app) {
  CLI::App* command = app.add_subcommand("profiles", "List and show the shipped profiles");
  command->footer("Example: equipoise profiles show h100-sxm");
  const auto format = std::make_shared<std::string>("table");
  const auto name = std::make_shared<std::string>();
  command->add_option("--format", *format, "table, json or csv")->capture_default_str();
  CLI::App* list =
      command->add_subcommand("list", "The shipped profiles, one line each (also without `list`)");
  list->add_option("--format", *format, "table, json or csv")->capture_default_str();
  CLI::App* show = command->add_subcommand("show", "Facts, provenance, ranges and errors of one profile");
  show->add_option("profile", *name, "A shipped profile's name or a .json file")->required();
  show->add_option("--format", *format, "table or json")->capture_default_str();
  command->callback([format, name] {
    if (name->empty()) {
      profiles_command(parse_format(*format), std::cout);
    } else {
      profiles_show_command(*name, parse_format(*format), std::cout);
    }
  });
}

void add_fit(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "fit", "Fit a profile to samples, or a framework preset to measured steps, and say how wrong it is");
  command->footer(
      "Example: equipoise fit --samples cpu.samples.json --out cpu.json\n"
      "         equipoise fit --samples all_reduce_perf.txt --base h100-sxm --nic-GBps 50 --out mine.json\n"
      "         equipoise fit --steps my_runs.csv --preset megatron --out mine.json");
  const auto options = std::make_shared<FitCommandOptions>();
  command->add_option(
      "--samples,samples", options->samples,
      "Samples that `profile` wrote (.json; default samples.json), output of nccl-tests, traces of "
      "torch.profiler (.json, .gz), or tables (.csv)");
  command->add_option("--recipe", options->recipe,
                      "Which rows make which table; needed for .csv without --base");
  command->add_option("--base", options->base,
                      "A profile to borrow from: the samples mend its tables, the rest stays as it is");
  command->add_option("--network", options->network,
                      "What to call the fabric of samples between nodes (measured by default)");
  command->add_option("--base-network", options->base_network,
                      "With --base: which of its networks to begin with; its default otherwise");
  command->add_option("--nic-GBps", options->nic_GBps,
                      "NIC rate of one GPU, one direction, that samples between nodes had");
  command->add_option("--document-histogram", options->document_histogram,
                      "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  CLI::Option* out = command->add_option("--out", options->out,
                                         "The file to write; profile.json, with --steps framework.json");
  const auto steps = std::make_shared<FitStepsOptions>();
  steps->tables.preset = kDefaultFramework;
  CLI::Option* rows =
      command->add_option("--steps", steps->tables.rows,
                          "Measured training steps (.csv), one a row: gpu, model_id, seq_len, tp, "
                          "cp, pp, dp, mbs, gbs_seqs, step_time_s; see sim/calibration/README.md");
  const auto with_steps = [&](CLI::Option* option) { option->needs(rows); };
  with_steps(
      command->add_option("--models", steps->tables.models,
                          "With --steps: shapes of the rows' model_id (.csv); built-in models otherwise"));
  with_steps(command->add_option("--preset", steps->tables.preset,
                                 "With --steps: the framework that ran; see `equipoise list frameworks`"));
  with_steps(command->add_option(
      "--profile", steps->tables.profile,
      "With --steps: the GPU of all rows; a100-, h100-, h200- or h800-sxm by the gpu column otherwise"));
  with_steps(
      command->add_option("--slowdowns", steps->slowdowns,
                          "With --steps: no fit, print the rows as G,A,E (slowdowns of GEMM, attention, "
                          "elementwise) or `preset` predict them"));
  with_steps(command->add_option("--jobs", steps->jobs, "With --steps: threads; all cores by default")
                 ->check(CLI::Range(0, 4096)));
  command->callback([options, steps, out] {
    if (!steps->tables.rows.empty()) {
      if (!options->samples.empty()) throw UserError("--steps: expected without --samples, found both");
      if (out->count() > 0) steps->out = options->out;
      fit_steps_command(*steps, std::cout, std::cerr);
      return;
    }
    if (options->samples.empty()) options->samples = {"samples.json"};
    fit_command(*options, std::cout, std::cerr);
  });
}

void add_predict(CLI::App& app) {
  CLI::App* command = app.add_subcommand("predict", "Predict the rows of a table and print the errors");
  command->footer(
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
      "given.");
  const auto options = std::make_shared<PredictOptions>();
  command->add_option("--profile", options->profile, "A shipped profile's name or a .json file")->required();
  command->add_option("--rows", options->rows, "Attention, GEMM, elementwise or collective rows (.csv)")
      ->required();
  command->add_option("--kernel", options->kernel, "Attention kernel of the profile to use for all rows");
  command->add_option("--network", options->network, "Network of the profile to use for all rows");
  command->add_option("--nic-GBps", options->nic_GBps, "NIC rate of one GPU, one direction");
  command->add_option("--document-histogram", options->document_histogram,
                      "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  const auto format = std::make_shared<std::string>("csv");
  command->add_option("--format", *format, "csv: the rows; table: the errors by group; json: both")
      ->capture_default_str();
  command->callback([options, format] {
    options->format = parse_format(*format);
    predict_command(*options, std::cout, std::cerr);
  });
}

}  // namespace equipoise
