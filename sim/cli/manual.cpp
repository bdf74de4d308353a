#include "sim/cli/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/command_line.h"
#include "sim/cli/command_list.h"

namespace equipoise {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& group) {
  return group.get_subcommands([](const CLI::App*) { return true; });
}

// All options but --help.
std::vector<const CLI::Option*> arguments_of(const CLI::App& command) {
  return command.get_options([&](const CLI::Option* option) { return option != command.get_help_ptr(); });
}

// "--out"; empty for a positional argument.
std::string name_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? std::string() : "--" + option.get_lnames().front();
}

// "file"; empty for an option.
std::string positional_of(const CLI::Option& option) {
  return option.get_positional() ? option.get_name(true) : std::string();
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// Escapes a line of text for man(7): a backslash, a typed hyphen, and a leading dot.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\')
      escaped += "\\e";
    else if (letter == '-')
      escaped += "\\-";
    else
      escaped += letter;
  }
  return escaped.starts_with(".") || escaped.starts_with("'") ? "\\&" + escaped : escaped;
}

void add_manual_option(std::string& page, const CLI::Option& option) {
  page += ".TP\n.B " + roff(name_of(option)) + (takes_value(option) ? "\" \" \\fIvalue\\fR\n" : "\n") +
          roff(option.get_description());
  if (const std::string fallback = option.get_default_str(); !fallback.empty())
    page += " (default " + roff(fallback) + ")";
  page += "\n";
}

void add_manual_section(std::string& page, const CLI::App& command, const std::string& path) {
  constexpr std::string_view kExample = "Example: ";
  if (!arguments_of(command).empty() || commands_of(command).empty()) {
    std::string line = path, positionals;
    for (const CLI::Option* argument : arguments_of(command))
      if (const std::string name = positional_of(*argument); !name.empty()) {
        line += " " + name;
        positionals += ".TP\n.I " + roff(name) + "\n" + roff(argument->get_description()) + "\n";
      }
    page += ".SS " + roff(line) + "\n" + roff(command.get_description()) + ".\n" + positionals;
    for (const CLI::Option* argument : arguments_of(command))
      if (!name_of(*argument).empty()) add_manual_option(page, *argument);
    std::string example = command.get_footer();
    if (example.starts_with(kExample)) example.erase(0, kExample.size());
    if (!example.empty()) page += ".PP\n.nf\n" + roff(example) + "\n.fi\n";
  }
  for (const CLI::App* inner : commands_of(command))
    add_manual_section(page, *inner, path + " " + inner->get_name());
}

// Values by option ("--schedule") or by a positional of a command ("list what").
using NamesOfOption = std::map<std::string, std::vector<std::string>>;

// Adds what may follow the words `path`: commands, or options and the names of a positional argument.
void add_bash_cases(std::string& script, const CLI::App& command, const std::string& path,
                    const NamesOfOption& names) {
  std::vector<std::string> next, options = {"--help"};
  for (const CLI::App* inner : commands_of(command)) next.push_back(inner->get_name());
  for (const CLI::Option* argument : arguments_of(command)) {
    if (const auto known = names.find(command.get_name() + " " + positional_of(*argument));
        known != names.end())
      next.insert(next.end(), known->second.begin(), known->second.end());
    if (!name_of(*argument).empty()) options.push_back(name_of(*argument));
  }
  script += "    '" + path + "') words='" + all_joined(next, " ") + "'; options='" +
            all_joined(options, " ") + "' ;;\n";
  for (const CLI::App* inner : commands_of(command))
    add_bash_cases(script, *inner, path + " " + inner->get_name(), names);
}

void add_command_names(std::string& pattern, const CLI::App& command, const std::string& path) {
  for (const CLI::App* inner : commands_of(command)) {
    const std::string inner_path = path + " " + inner->get_name();
    pattern.append(pattern.empty() ? "" : "|").append("'").append(inner_path).append("'");
    add_command_names(pattern, *inner, inner_path);
  }
}

std::string bash_script(const CLI::App& program, const NamesOfOption& names) {
  std::string commands;
  add_command_names(commands, program, program.get_name());
  std::string script = "# Completion of " + program.get_name() + " for bash; zsh runs it, too.\n_" +
                       program.get_name() + "() {\n";
  script += "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n";
  script += "  local path='" + program.get_name() + "' words='' options='' word\n";
  script += "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$path $word\" in\n      " +
            commands + ") path=\"$path $word\" ;;\n    esac\n  done\n";
  script += "  case \"$previous\" in\n";
  for (const auto& [option, values] : names)
    if (option.starts_with("--"))
      script += "    " + option + ") COMPREPLY=($(compgen -W '" + all_joined(values, " ") +
                "' -- \"$current\")); return ;;\n";
  script += "  esac\n  case \"$path\" in\n";
  add_bash_cases(script, program, program.get_name(), names);
  script +=
      "  esac\n  case \"$current\" in\n    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n";
  script += "    *) COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n";
  script += "       [ -n \"$words\" ] || COMPREPLY=($(compgen -f -- \"$current\")) ;;\n  esac\n}\n";
  script +=
      "complete -o filenames -o bashdefault -F _" + program.get_name() + " " + program.get_name() + "\n";
  return script;
}

// Escapes a backslash and a quote for fish's single quotes.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\\' || letter == '\'') quoted += '\\';
    quoted += letter;
  }
  return quoted + "'";
}

// Adds the lines of a command and of all commands inside it. `path` has the words that lead to it.
void add_fish_lines(std::string& script, const CLI::App& command, const std::string& path,
                    const std::string& program, const NamesOfOption& names) {
  const std::string start = "complete -c " + program + " -n '__" + program + "_at " + path + "'";
  for (const CLI::App* inner : commands_of(command))
    script += start + " -f -a " + inner->get_name() + " -d " + fish_quoted(inner->get_description()) + "\n";
  const auto offer = [&](const std::string& name) {  // the names of an option or of "command positional"
    const auto known = names.find(name);
    return known == names.end() ? std::string() : " -f -a " + fish_quoted(all_joined(known->second, " "));
  };
  for (const CLI::Option* argument : arguments_of(command))
    if (const std::string offered = offer(command.get_name() + " " + positional_of(*argument));
        !offered.empty())
      script += start + offered + "\n";
  for (const CLI::Option* argument : arguments_of(command))
    if (const std::string option = name_of(*argument); !option.empty())
      script += start + " -l " + option.substr(2) + " -d " + fish_quoted(argument->get_description()) +
                (takes_value(*argument) ? " -r" : "") + offer(option) + "\n";
  for (const CLI::App* inner : commands_of(command))
    add_fish_lines(script, *inner, path + " " + inner->get_name(), program, names);
}

// A function of the script tells whether the words lead to a command, such as `list` or `profiles list`.
std::string fish_script(const CLI::App& program, const NamesOfOption& names) {
  std::string commands;
  add_command_names(commands, program, program.get_name());
  std::replace(commands.begin(), commands.end(), '|', ' ');
  std::string script =
      "# Completion of " + program.get_name() + " for fish.\nfunction __" + program.get_name() + "_at\n";
  script +=
      "  set -l path " + program.get_name() + "\n  set -l words (commandline -opc)\n  set -e words[1]\n";
  script += "  for word in $words\n    switch \"$path $word\"\n      case " + commands +
            "\n        set path \"$path $word\"\n    end\n  end\n  test \"$path\" = \"$argv\"\nend\n";
  add_fish_lines(script, program, program.get_name(), program.get_name(), names);
  return script;
}

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

std::string manual_page(const CLI::App& program, const std::string& version) {
  std::string page = ".TH EQUIPOISE 1 \"\" \"" + program.get_name() + " " + version + "\"\n";
  page += ".SH NAME\n" + program.get_name() + " \\- " + roff(program.get_description()) + "\n";
  page += ".SH SYNOPSIS\n.B " + program.get_name() + "\n.I command\n[options]\n.SH COMMANDS\n";
  for (const CLI::App* command : commands_of(program))
    add_manual_section(page, *command, command->get_name());
  page += ".SH EXIT STATUS\n.TP\n.B 0\nsuccess; a policy that cannot run is a row of the result\n";
  page +=
      ".TP\n.B 1\na check failed (check, validate, execute)\n.TP\n.B 2\nwrong input; one line says what\n";
  page += ".TP\n.B 3\nan internal fault\n.TP\n.B 130\nended by Ctrl\\-C; what was finished is kept\n";
  return page;
}

std::string shell_completion(const CLI::App& program, const NamesOfOption& names, const std::string& shell) {
  if (shell == "bash") return bash_script(program, names);
  if (shell == "zsh") return "autoload -Uz bashcompinit && bashcompinit\n" + bash_script(program, names);
  if (shell == "fish") return fish_script(program, names);
  throw UserError("shell: expected bash, zsh or fish, found ", shell);
}

}  // namespace

void add_manual_commands(CLI::App& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& completion = add_command(
      program, "completion", "Print a shell's script for the Tab key",
      "Example: equipoise completion bash > ~/.local/share/bash-completion/completions/equipoise");
  completion.add_option("shell", *shell, "bash, zsh or fish")->required();
  completion.callback([shell, &program] { std::cout << shell_completion(program, known_names(), *shell); });
  CLI::App& manual = add_command(program, "manual", "Print the manual page, for man(1)",
                                 "Example: equipoise manual | man -l -");
  manual.callback([&program] { std::cout << manual_page(program, EQUIPOISE_VERSION); });
}

}  // namespace equipoise
