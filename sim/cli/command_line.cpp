// What the command line's description is made into without a parser: the manual page, equipoise(1), and what
// the Tab key completes in bash, zsh and fish.
#include "sim/cli/command_line.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/plan_commands.h"

namespace equipoise {
namespace {

// What --help prints of a variable's value.
std::string value_shown(const Argument::Target& target) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        std::ostringstream text;
        if constexpr (std::is_same_v<Held, Format*>)
          text << kFormatNames[static_cast<std::size_t>(*held)];
        else if constexpr (requires { text << *held; })
          text << *held;
        return text.str();
      },
      target);
}

// A line of text as man(7) reads it: a backslash, a hyphen that is typed, and a leading dot are escaped.
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

void add_manual_option(std::string& page, const Argument& option) {
  page += ".TP\n.B " + roff(option.option()) + (option.takes_value() ? "\" \" \\fIvalue\\fR\n" : "\n") +
          roff(option.help);
  if (!option.fallback.empty()) page += " (default " + roff(option.fallback) + ")";
  page += "\n";
}

void add_manual_section(std::string& page, const Command& command, const std::string& path) {
  constexpr std::string_view kExample = "Example: ";
  if (!command.arguments.empty() || command.commands.empty()) {
    std::string line = path, positionals;
    for (const Argument& argument : command.arguments)
      if (const std::string name = argument.positional(); !name.empty()) {
        line += " " + name;
        positionals += ".TP\n.I " + roff(name) + "\n" + roff(argument.help) + "\n";
      }
    page += ".SS " + roff(line) + "\n" + roff(command.summary) + ".\n" + positionals;
    for (const Argument& argument : command.arguments)
      if (!argument.option().empty()) add_manual_option(page, argument);
    std::string example = command.footer;
    if (example.starts_with(kExample)) example.erase(0, kExample.size());
    if (!example.empty()) page += ".PP\n.nf\n" + roff(example) + "\n.fi\n";
  }
  for (const Command& inner : command.commands) add_manual_section(page, inner, path + " " + inner.name);
}

// Values by option ("--schedule") or by a positional of a command ("list what").
using NamesOfOption = std::map<std::string, std::vector<std::string>>;

// What may follow the words `path`: commands, or options and the names of a positional.
void add_bash_cases(std::string& script, const Command& command, const std::string& path,
                    const NamesOfOption& names) {
  std::vector<std::string> next, options = {"--help"};
  for (const Command& inner : command.commands) next.push_back(inner.name);
  for (const Argument& argument : command.arguments) {
    if (const auto known = names.find(command.name + " " + argument.positional()); known != names.end())
      next.insert(next.end(), known->second.begin(), known->second.end());
    if (!argument.option().empty()) options.push_back(argument.option());
  }
  script += "    '" + path + "') words='" + all_joined(next, " ") + "'; options='" + all_joined(options, " ") + "' ;;\n";
  for (const Command& inner : command.commands) add_bash_cases(script, inner, path + " " + inner.name, names);
}

void add_command_names(std::string& pattern, const Command& command, const std::string& path) {
  for (const Command& inner : command.commands) {
    const std::string inner_path = path + " " + inner.name;
    pattern.append(pattern.empty() ? "" : "|").append("'").append(inner_path).append("'");
    add_command_names(pattern, inner, inner_path);
  }
}

std::string bash_script(const Command& program, const NamesOfOption& names) {
  std::string commands;
  add_command_names(commands, program, program.name);
  std::string script =
      "# Completion of " + program.name + " for bash; zsh runs it, too.\n_" + program.name + "() {\n";
  script += "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n";
  script += "  local path='" + program.name + "' words='' options='' word\n";
  script += "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$path $word\" in\n      " +
            commands + ") path=\"$path $word\" ;;\n    esac\n  done\n";
  script += "  case \"$previous\" in\n";
  for (const auto& [option, values] : names)
    if (option.starts_with("--"))
      script += "    " + option + ") COMPREPLY=($(compgen -W '" + all_joined(values, " ") +
                "' -- \"$current\")); return ;;\n";
  script += "  esac\n  case \"$path\" in\n";
  add_bash_cases(script, program, program.name, names);
  script +=
      "  esac\n  case \"$current\" in\n    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n";
  script += "    *) COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n";
  script += "       [ -n \"$words\" ] || COMPREPLY=($(compgen -f -- \"$current\")) ;;\n  esac\n}\n";
  script += "complete -o filenames -o bashdefault -F _" + program.name + " " + program.name + "\n";
  return script;
}

// Single quotes of fish: a backslash and a quote are escaped.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\\' || letter == '\'') quoted += '\\';
    quoted += letter;
  }
  return quoted + "'";
}

// The lines of a command and of all inside it. `path`: the words that lead to it.
void add_fish_lines(std::string& script, const Command& command, const std::string& path,
                    const std::string& program, const NamesOfOption& names) {
  const std::string start = "complete -c " + program + " -n '__" + program + "_at " + path + "'";
  for (const Command& inner : command.commands)
    script += start + " -f -a " + inner.name + " -d " + fish_quoted(inner.summary) + "\n";
  const auto offer = [&](const std::string& name) {  // the names of an option or of "command positional"
    const auto known = names.find(name);
    return known == names.end() ? std::string() : " -f -a " + fish_quoted(all_joined(known->second, " "));
  };
  for (const Argument& argument : command.arguments)
    if (const std::string offered = offer(command.name + " " + argument.positional()); !offered.empty())
      script += start + offered + "\n";
  for (const Argument& argument : command.arguments)
    if (const std::string option = argument.option(); !option.empty())
      script += start + " -l " + option.substr(2) + " -d " + fish_quoted(argument.help) +
                (argument.takes_value() ? " -r" : "") + offer(option) + "\n";
  for (const Command& inner : command.commands)
    add_fish_lines(script, inner, path + " " + inner.name, program, names);
}

// A function says whether the words so far lead to a command: `list` is one, and `profiles list` another.
std::string fish_script(const Command& program, const NamesOfOption& names) {
  std::string commands;
  add_command_names(commands, program, program.name);
  std::replace(commands.begin(), commands.end(), '|', ' ');
  std::string script = "# Completion of " + program.name + " for fish.\nfunction __" + program.name + "_at\n";
  script += "  set -l path " + program.name + "\n  set -l words (commandline -opc)\n  set -e words[1]\n";
  script += "  for word in $words\n    switch \"$path $word\"\n      case " + commands +
            "\n        set path \"$path $word\"\n    end\n  end\n  test \"$path\" = \"$argv\"\nend\n";
  add_fish_lines(script, program, program.name, program.name, names);
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

std::string manual_page(const Command& program, const std::string& version) {
  std::string page = ".TH EQUIPOISE 1 \"\" \"" + program.name + " " + version + "\"\n";
  page += ".SH NAME\n" + program.name + " \\- " + roff(program.summary) + "\n";
  page += ".SH SYNOPSIS\n.B " + program.name + "\n.I command\n[options]\n.SH COMMANDS\n";
  for (const Command& command : program.commands) add_manual_section(page, command, command.name);
  page += ".SH EXIT STATUS\n.TP\n.B 0\nsuccess; a policy that cannot run is a row of the result\n";
  page +=
      ".TP\n.B 1\na check failed (check, validate, execute)\n.TP\n.B 2\nwrong input; one line says what\n";
  page += ".TP\n.B 3\nan internal fault\n.TP\n.B 130\nended by Ctrl\\-C; what was finished is kept\n";
  return page;
}

std::string shell_completion(const Command& program, const NamesOfOption& names, const std::string& shell) {
  if (shell == "bash") return bash_script(program, names);
  if (shell == "zsh") return "autoload -Uz bashcompinit && bashcompinit\n" + bash_script(program, names);
  if (shell == "fish") return fish_script(program, names);
  throw UserError("shell: expected bash, zsh or fish, found ", shell);
}

}  // namespace

Argument& Argument::shows_default() {
  return shows_default(value_shown(target));
}

bool Argument::takes_value() const {
  return !std::holds_alternative<bool*>(target) && !std::holds_alternative<std::string_view>(target);
}
std::string Argument::option() const {
  return name.starts_with("--") ? name.substr(0, name.find(',')) : std::string();
}
std::string Argument::positional() const {
  const std::string last = name.substr(name.find(',') + 1);  // all of it without a comma
  return last.starts_with("--") ? std::string() : last;
}

Argument& Command::add(std::string argument, Argument::Target target, std::string help) {
  return arguments.emplace_back(Argument{std::move(argument), std::move(help), target});
}

void add_memory_option(Command& command, double& max_memory_GB) {
  command
      .add(
          "--max-memory-GB", max_memory_GB,
          "Most memory to plan for; the least of 80% of the machine's, the cgroup's and RLIMIT_AS by default")
      .refuses_zero = true;
}

void add_format_option(Command& command, Format& format, const std::string& help) {
  command.add("--format", format, help).shows_default();
}

Command grammar_of_completion(const Command& program) {
  const auto shell = std::make_shared<std::string>();
  Command command{
      "completion", "Print a shell's script for the Tab key",
      "Example: equipoise completion bash > ~/.local/share/bash-completion/completions/equipoise"};
  command.add("shell", *shell, "bash, zsh or fish").required();
  return command.doing([shell, &program] { std::cout << shell_completion(program, known_names(), *shell); });
}

Command grammar_of_manual(const Command& program) {
  Command command{"manual", "Print the manual page, for man(1)", "Example: equipoise manual | man -l -"};
  return command.doing([&program] { std::cout << manual_page(program, EQUIPOISE_VERSION); });
}

}  // namespace equipoise
