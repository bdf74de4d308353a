#include "sim/cli/argument_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/names.h"

namespace equipoise {
namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// "equipoise trace info": the command that was being parsed.
std::string command_line_of(const CLI::App& app, const CLI::App*& innermost) {
  std::string words = app.get_name();
  innermost = &app;
  while (true) {
    const std::vector<CLI::App*> parsed = const_cast<CLI::App*>(innermost)->get_subcommands();
    if (parsed.empty()) return words;
    innermost = parsed.front();
    words += " " + innermost->get_name();
  }
}

std::string check_number(const std::string& text, bool fraction, bool sign) {
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

}  // namespace

void check_command_names(const CLI::App& app, int argc, char** argv) {
  const CLI::App* group = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const std::vector<std::string> known = commands_of(*group);
    if (known.empty() || name.empty() || name.front() == '-') return;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string list;
      for (const std::string& command : known) list += (list.empty() ? "" : ", ") + command;
      throw UserError("unknown command \"" + name + "\"" + did_you_mean(name, known) + " (known: " + list +
                      ")");
    }
    group = group->get_subcommand(name);
  }
}

void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool fraction = type.rfind("FLOAT", 0) == 0;
    const bool sign = fraction || type.rfind("INT", 0) == 0;
    if (!sign && type.rfind("UINT", 0) != 0) continue;
    option->check([fraction, sign](const std::string& text) { return check_number(text, fraction, sign); });
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) check_numbers(*command);
}

void check_outputs(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->check_lname("out"))
      option->check([](const std::string& text) {
        return text.empty() ? std::string("expected a name, found nothing") : std::string();
      });
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) check_outputs(*command);
}

std::string explained(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ";
  const CLI::App* innermost = nullptr;
  const std::string command = command_line_of(app, innermost);
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    text = unexpected(app, command, *innermost);
  } else if (text.rfind(kConversion, 0) == 0) {  // check_numbers left only those that do not fit
    return text.substr(kConversion.size()) + ": the number is out of range";
  } else if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    return text;  // names the option, what was found and what is allowed
  } else {
    text = command + ": " + text;
  }
  return text + " (`" + command + " --help` lists what there is)";
}

}  // namespace equipoise
