#include "sim/cli/command_text.h"

#include <CLI/CLI.hpp>

namespace equipoise {
namespace {

std::string example_of(const CLI::App& app) {
  constexpr std::string_view kBefore = "Example: ";
  const std::string& footer = app.get_footer();
  return footer.starts_with(kBefore) ? footer.substr(kBefore.size()) : footer;
}

}  // namespace

CommandText command_text(const CLI::App& app) {
  CommandText text;
  text.name = app.get_name();
  text.summary = app.get_description();
  text.example = example_of(app);
  for (const CLI::Option* option : app.get_options()) {
    OptionText row{.name = option->get_name(true),
                   .help = option->get_description(),
                   .fallback = option->get_default_str(),
                   .takes_value = option->get_type_size() > 0};
    if (option->get_positional()) text.positionals.push_back(row);
    if (option->get_lnames().empty() || option == app.get_help_ptr()) continue;
    row.name = "--" + option->get_lnames().front();
    text.options.push_back(std::move(row));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    text.commands.push_back(command_text(*command));
  return text;
}

}  // namespace equipoise
