// The part of the grammar that shows, makes and tries profiles.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "sim/cli/command_fit.h"
#include "sim/cli/command_predict.h"
#include "sim/cli/command_profiles.h"
#include "sim/cli/grammar_parts.h"

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
  CLI::App* command = app.add_subcommand("fit", "Fit a profile to samples and say how wrong it is");
  command->footer("Example: equipoise fit --samples cpu.samples.json --out cpu.json");
  const auto options = std::make_shared<FitCommandOptions>();
  command->add_option("--samples,samples", options->samples,
                      "Samples that `profile` wrote (.json; default samples.json), or tables (.csv)");
  command->add_option("--recipe", options->recipe, "Which rows make which table; needed for .csv");
  command->add_option("--document-histogram", options->document_histogram,
                      "Lengths that rows of packed documents were drawn from (length_min,length_max,n_docs)");
  command->add_option("--out", options->out, "The profile to write")->capture_default_str();
  command->callback([options] {
    if (options->samples.empty()) options->samples = {"samples.json"};
    fit_command(*options, std::cout, std::cerr);
  });
}

void add_predict(CLI::App& app) {
  CLI::App* command = app.add_subcommand("predict", "Predict the rows of a table and print the errors");
  command->footer("Example: equipoise predict --profile h100-sxm --rows gemm.csv");
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
