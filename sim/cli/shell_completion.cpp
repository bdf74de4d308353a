#include "sim/cli/shell_completion.h"

#include <algorithm>

#include "policies/base/error.h"

namespace equipoise {
namespace {

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

// What may follow the words `path`: commands, or options and the names of a positional.
void add_bash_cases(std::string& script, const CommandText& command, const std::string& path,
                    const NamesOfOption& names) {
  std::vector<std::string> next;
  for (const CommandText& inner : command.commands) next.push_back(inner.name);
  for (const OptionText& positional : command.positionals)
    if (const auto known = names.find(command.name + " " + positional.name); known != names.end())
      next.insert(next.end(), known->second.begin(), known->second.end());
  std::vector<std::string> options = {"--help"};
  for (const OptionText& option : command.options) options.push_back(option.name);
  script += "    '" + path + "') words='" + words(next) + "'; options='" + words(options) + "' ;;\n";
  for (const CommandText& inner : command.commands)
    add_bash_cases(script, inner, path + " " + inner.name, names);
}

void add_command_names(std::string& pattern, const CommandText& command, const std::string& path) {
  for (const CommandText& inner : command.commands) {
    const std::string inner_path = path + " " + inner.name;
    pattern.append(pattern.empty() ? "" : "|").append("'").append(inner_path).append("'");
    add_command_names(pattern, inner, inner_path);
  }
}

std::string bash_script(const CommandText& program, const NamesOfOption& names) {
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
      script += "    " + option + ") COMPREPLY=($(compgen -W '" + words(values) +
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

// Of a command and all inside it. `path`: the words that lead to it.
void add_fish_lines(std::string& script, const CommandText& command, const std::string& path,
                    const std::string& program, const NamesOfOption& names) {
  const std::string start = "complete -c " + program + " -n '__" + program + "_at " + path + "'";
  for (const CommandText& inner : command.commands)
    script += start + " -f -a " + inner.name + " -d " + fish_quoted(inner.summary) + "\n";
  for (const OptionText& positional : command.positionals)
    if (const auto known = names.find(command.name + " " + positional.name); known != names.end())
      script += start + " -f -a " + fish_quoted(words(known->second)) + "\n";
  for (const OptionText& option : command.options) {
    script += start + " -l " + option.name.substr(2) + " -d " + fish_quoted(option.help);
    if (option.takes_value) script += " -r";
    if (const auto known = names.find(option.name); known != names.end())
      script += " -f -a " + fish_quoted(words(known->second));
    script += "\n";
  }
  for (const CommandText& inner : command.commands)
    add_fish_lines(script, inner, path + " " + inner.name, program, names);
}

// A function says whether the words so far lead to a command: `list` is one, and `profiles list` another.
std::string fish_script(const CommandText& program, const NamesOfOption& names) {
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

}  // namespace

std::string shell_completion(const CommandText& program, const NamesOfOption& names,
                             const std::string& shell) {
  if (shell == "bash") return bash_script(program, names);
  if (shell == "zsh") return "autoload -Uz bashcompinit && bashcompinit\n" + bash_script(program, names);
  if (shell == "fish") return fish_script(program, names);
  throw UserError("shell: expected bash, zsh or fish, found " + shell);
}

}  // namespace equipoise
