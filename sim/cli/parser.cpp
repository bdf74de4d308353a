// The one file that knows CLI11: it hands it the command line's description, and says what its own errors
// leave out: which command, what would do, and the nearest known name.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <type_traits>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/command_line.h"

namespace equipoise {
namespace {

// A format or a size: CLI11 takes its text, which is read when all words have been parsed.
struct TypedText {
  const Argument* argument = nullptr;
  const CLI::Option* option = nullptr;
  std::string text;
};

void read_typed(const TypedText& typed) {
  const Argument& argument = *typed.argument;
  if (typed.option->count() == 0) return;
  if (Format* const* format = std::get_if<Format*>(&argument.target)) {
    **format = parse_format(typed.text);
    return;
  }
  // An empty size stands for none, unless one is needed.
  if (typed.text.empty() && argument.fallback.empty() && !argument.is_required) return;
  if (std::int64_t* const* one = std::get_if<std::int64_t*>(&argument.target))
    **one = parse_length(typed.text, argument.option());
  else
    *std::get<std::vector<std::int64_t>*>(argument.target) = parse_lengths(typed.text, argument.option());
}

// What is wrong with a text as a number; empty: nothing. A sign before a count and nan are no numbers.
std::string number_problem(const std::string& text, bool fraction, bool sign) {
  char* end = nullptr;
  const bool blank = text.empty() || std::isspace(static_cast<unsigned char>(text.front())) != 0;
  bool good = !blank && (sign || text.front() != '-');
  if (good && fraction) good = std::isfinite(std::strtod(text.c_str(), &end));
  if (good && !fraction) std::strtoll(text.c_str(), &end, 10);
  if (good && *end == '\0') return "";
  return std::string("expected ") +
         (fraction ? "a number"
          : sign   ? "an integer"
                   : "an integer >= 0") +
         ", found " + (text.empty() ? "nothing" : text);
}

template <class Value>
void check_number(CLI::Option& option, const Argument& argument) {
  if constexpr (std::is_arithmetic_v<Value>)
    if (argument.most >= argument.least)
      option.check(CLI::Range(static_cast<Value>(argument.least), static_cast<Value>(argument.most)));
  constexpr bool kFraction = std::is_same_v<Value, double> || std::is_same_v<Value, std::vector<double>>;
  [[maybe_unused]] constexpr bool kSign = !std::is_same_v<Value, std::uint64_t>;
  if constexpr (std::is_arithmetic_v<Value> || kFraction)
    option.check([](const std::string& text) { return number_problem(text, kFraction, kSign); });
}

// The option with the checks that its variable's type asks for.
CLI::Option* add_typed(CLI::App& app, const Argument& argument, std::deque<TypedText>& texts) {
  return std::visit(
      [&](const auto& target) -> CLI::Option* {
        using Value = std::remove_pointer_t<std::decay_t<decltype(target)>>;
        if constexpr (std::is_same_v<Value, std::string_view>) {
          return app.set_version_flag(argument.name, std::string(target), argument.help);
        } else if constexpr (std::is_same_v<Value, bool>) {
          return app.add_flag(argument.name, *target, argument.help);
        } else {
          constexpr bool kIsText =
              std::is_same_v<Value, Format> || std::is_same_v<Value, std::vector<std::int64_t>>;
          if (kIsText || argument.is_size) {
            TypedText& typed = texts.emplace_back(TypedText{&argument, nullptr, {}});
            CLI::Option* const option = app.add_option(argument.name, typed.text, argument.help);
            typed.option = option;
            return option;
          }
          if constexpr (!kIsText) {
            CLI::Option* const option = app.add_option(argument.name, *target, argument.help);
            if (argument.refuses_zero)
              option->check([](const std::string& text) {
                char* end = nullptr;
                const bool is_zero = std::strtod(text.c_str(), &end) == 0 && !text.empty() && *end == '\0';
                return std::string(is_zero ? "expected a number from 0.1 to 1000000, found 0" : "");
              });
            check_number<Value>(*option, argument);
            return option;
          }
          return nullptr;
        }
      },
      argument.target);
}

void add_command(CLI::App& app, const Command& command, std::deque<TypedText>& texts) {
  app.footer(command.footer);
  if (command.verbatim != nullptr) app.prefix_command()->set_help_flag();  // --help is another program's, too
  if (!command.run && !command.commands.empty()) app.require_subcommand(1);
  for (const Argument& argument : command.arguments) {
    CLI::Option* const option = add_typed(app, argument, texts);
    if (argument.is_required) option->required();
    if (argument.is_split) option->delimiter(',');
    if (argument.takes_last) option->take_last();
    if (!argument.fallback.empty()) option->default_str(argument.fallback);
    if (!argument.needs.empty()) option->needs(app.get_option(argument.needs));
    if (option->check_lname("out"))  // an empty name would be taken for no --out
      option->check([](const std::string& text) {
        return text.empty() ? std::string("expected a name, found nothing") : std::string();
      });
  }
  for (const Command& inner : command.commands)
    add_command(*app.add_subcommand(inner.name, inner.summary), inner, texts);
}

// Whether "--out" was typed, or "--fidelity op".
bool is_typed(const CLI::App& app, const std::string& words) {
  const std::size_t space = words.find(' ');
  const CLI::Option& option = *app.get_option(words.substr(0, space));
  if (option.count() == 0) return false;
  return space == std::string::npos || option.results().back() == words.substr(space + 1);
}

// Options that were typed and change nothing beside the others, in one form.
void note_idle_options(const CLI::App& app, const Command& command) {
  for (const Argument& argument : command.arguments) {
    if (argument.acts_with.empty() || !is_typed(app, argument.option())) continue;
    if (!is_typed(app, argument.acts_with))
      std::cerr << "note: " << no_effect(argument.option(), "with " + argument.acts_with) << '\n';
  }
}

const Command* find_command(const Command& group, const std::string& name) {
  const auto found = std::ranges::find(group.commands, name, &Command::name);
  return found == group.commands.end() ? nullptr : &*found;
}

// Refuses an unknown command, of `equipoise` or of a group such as `trace`, by its name.
void check_command_names(const Command& program, int argc, char** argv) {
  const Command* group = &program;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (group->commands.empty() || name.empty() || name.front() == '-') return;
    const Command* const named = find_command(*group, name);
    if (named == nullptr) {
      std::vector<std::string> known;
      for (const Command& command : group->commands) known.push_back(command.name);
      throw UserError("unknown command \"" + name + "\"" + did_you_mean(name, known) +
                      " (known: " + joined(known) + ")");
    }
    group = named;
  }
}

// The commands whose names were parsed, outermost first: "equipoise", "trace", "info".
std::vector<CLI::App*> parsed_commands(CLI::App& app) {
  std::vector<CLI::App*> path = {&app};
  while (!path.back()->get_subcommands().empty()) path.push_back(path.back()->get_subcommands().front());
  return path;
}

// What the parser had left over: the first is what it did not know.
std::string unexpected(const CLI::App& app, const std::string& command, const CLI::App& innermost) {
  const std::vector<std::string> left = app.remaining(true);
  const std::string word = left.empty() ? std::string() : left.front().substr(0, left.front().find('='));
  if (word.empty() || word.front() != '-') return command + ": unexpected argument \"" + word + "\"";
  std::vector<std::string> known;
  for (const CLI::Option* option : innermost.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return command + ": unknown option \"" + word + "\"" + did_you_mean(word, known);
}

// One line for a parse that failed.
std::string explained(CLI::App& app, const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::vector<CLI::App*> path = parsed_commands(app);
  const std::string command = all_joined(path, " ", [](const CLI::App* one) { return one->get_name(); });
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    text = unexpected(app, command, *path.back());
  else if (text.rfind(kConversion, 0) == 0)  // check_number left only those that do not fit
    return text.substr(kConversion.size()) + ": the number is out of range";
  else if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr)
    return text;  // names the option, what was found and what is allowed
  else
    text = command + ": " + text;
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)  // what it may be, as --help says it
    for (const CLI::Option* option : path.back()->get_options())
      if (text.ends_with(": " + option->get_name() + " is required")) text += ": " + option->get_description();
  return text + " (`" + command + " --help` lists what there is)";
}

}  // namespace

int parse_and_run(const Command& program, int argc, char** argv) {
  CLI::App app{program.summary};
  app.name(program.name);
  std::deque<TypedText> texts;
  add_command(app, program, texts);
  check_command_names(program, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    throw UserError(explained(app, error));
  }
  for (const TypedText& typed : texts) read_typed(typed);
  const Command* named = &program;
  const Command* running = nullptr;  // `profiles list` is run by `profiles`
  for (const CLI::App* parsed : parsed_commands(app)) {
    if (parsed != &app) named = find_command(*named, parsed->get_name());
    if (named->verbatim != nullptr) *named->verbatim = parsed->remaining();
    if (named->run) running = named;
    const CLI::Option* const quiet = parsed->get_option_no_throw("--quiet");
    if (quiet == nullptr || quiet->count() == 0) note_idle_options(*parsed, *named);
  }
  return running->run();
}

}  // namespace equipoise
