// What the program says of itself to shells and to man(1).
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "sim/cli/command_text.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/manual_page.h"
#include "sim/cli/plan_commands.h"
#include "sim/cli/shell_completion.h"

namespace equipoise {
namespace {

NamesOfOption known_names() {
  return {{"--format", {"table", "json", "csv"}},
          {"--fidelity", {"stage", "op"}},
          {"--device", {"cpu", "cuda"}},
          {"--loss-normalizer", {"token", "sample", "sum", "stable"}},
          {"--policy", listed_names("policies")},
          {"--schedule", listed_names("schedules")},
          {"--model", listed_names("models")},
          {"--profile", listed_names("profiles")},
          {"--preset", listed_names("frameworks")},
          {"list what", {"policies", "schedules", "models", "profiles", "frameworks", "traces", "schema"}},
          {"completion shell", {"bash", "zsh", "fish"}}};
}

}  // namespace

void add_self_description(CLI::App& app) {
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's script for the Tab key");
  completion->footer(
      "Example: equipoise completion bash > ~/.local/share/bash-completion/completions/equipoise");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash, zsh or fish")->required();
  completion->callback(
      [shell, &app] { std::cout << shell_completion(command_text(app), known_names(), *shell); });

  CLI::App* manual = app.add_subcommand("manual", "Print the manual page, for man(1)");
  manual->footer("Example: equipoise manual | man -l -");
  manual->callback([&app] { std::cout << manual_page(command_text(app), EQUIPOISE_VERSION); });
}

}  // namespace equipoise
