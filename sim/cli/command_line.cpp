// CLI11 parses the words. Its errors do not name the command, what is allowed or the nearest known name; the
// functions below add that.
#include "sim/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/cli/grammar_plan.h"
#include "sim/cli/grammar_profile.h"
#include "sim/cli/grammar_study.h"
#include "sim/cli/manual.h"
#include "sim/report/words/words.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

constexpr std::string_view kOnlyWith = "Only with ";  // begins the name of a group of options

std::vector<CLI::App*> commands_of(CLI::App& group) {
  return group.get_subcommands([](const CLI::App*) { return true; });
}

// What is wrong with a text as a number; empty if it is valid.
std::string number_problem(const std::string& text, bool fraction, bool sign) {
  char* end = nullptr;
  const bool blank = text.empty() || std::isspace(static_cast<unsigned char>(text.front())) != 0;
  bool good = !blank && (sign || text.front() != '-');
  if (good && fraction) good = std::isfinite(std::strtod(text.c_str(), &end));
  errno = 0;
  if (good && !fraction && sign) std::strtoll(text.c_str(), &end, 10);
  if (good && !fraction && !sign) std::strtoull(text.c_str(), &end, 10);
  if (good && *end == '\0' && errno == ERANGE && !fraction)  // is read as the nearest double
    return text.front() == '-'
               ? "expected an integer >= " + std::to_string(INT64_MIN) + ", found " + text
               : "expected an integer <= " + (sign ? std::to_string(INT64_MAX) : std::to_string(UINT64_MAX)) +
                     ", found " + text;
  if (good && *end == '\0') return "";
  return std::string("expected ") +
         (fraction ? "a number"
          : sign   ? "an integer"
                   : "an integer >= 0") +
         ", found " + (text.empty() ? "nothing" : text);
}

// CLI11 accepts nan as a number, a sign before a count, and an empty --out, which would mean no --out.
void refuse_odd_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool fraction = type.starts_with("FLOAT"), sign = type.starts_with("INT");
    if (fraction || sign || type.starts_with("UINT"))
      option->check(
          [=](const std::string& text) { return number_problem(text, fraction, fraction || sign); });
    if (option->check_lname("out"))
      option->check([](const std::string& text) {
        return text.empty() ? std::string("expected a name, found nothing") : std::string();
      });
  }
  for (CLI::App* inner : commands_of(command)) refuse_odd_values(*inner);
}

// Adds --max-input-MB to commands that read a user's files.
void add_input_options(CLI::App& command) {
  const std::string& name = command.get_name();
  if (name == "list" || name == "explain" || name == "doctor") return;
  for (CLI::App* inner : commands_of(command)) add_input_options(*inner);
  if (command.get_require_subcommand_min() > 0) return;
  command
      .add_option_function<double>(
          "--max-input-MB",
          [](const double& most_MB) {
            set_input_limit({most_MB * 1e6, true});
          },
          "Most bytes of an input file, unpacked; " + std::to_string(static_cast<int>(kDefaultInputMB)) +
              " by default, and of what is packed 1000 times its size")
      ->check(CLI::Range(1e-3, 1e9));
}

// The commands whose names were parsed, outermost first: "equipoise", "trace", "info".
std::vector<CLI::App*> parsed_commands(CLI::App& program) {
  std::vector<CLI::App*> path = {&program};
  while (!path.back()->get_subcommands().empty()) path.push_back(path.back()->get_subcommands().front());
  return path;
}

bool is_typed(const CLI::App& command, const std::string& option) {
  const CLI::Option* const known = command.get_option_no_throw(option);
  return known != nullptr && known->count() > 0;
}

// Names typed options that have no effect without another one.
void note_idle_options(const CLI::App& command) {
  if (is_typed(command, "--quiet")) return;
  for (const CLI::Option* option : command.get_options()) {
    const std::string group = option->get_group();
    if (option->count() == 0 || !group.starts_with(kOnlyWith)) continue;
    const std::string other = group.substr(kOnlyWith.size());
    if (!is_typed(command, other))
      std::cerr << "note: " << text_of(no_effect("--" + option->get_lnames().front(), "with " + other))
                << '\n';
  }
}

// Refuses unknown commands of `equipoise`, or of a group such as `trace`, by name.
void check_command_names(CLI::App& program, int argc, char** argv) {
  CLI::App* group = &program;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const std::vector<std::string> known = each_of(commands_of(*group), &CLI::App::get_name);
    if (known.empty() || name.empty() || name.front() == '-') return;
    if (std::ranges::find(known, name) == known.end())
      throw UserError("unknown command \"" + name + "\"" + did_you_mean(name, known) +
                      " (known: " + joined(known) + ")");
    group = group->get_subcommand(name);
  }
}

// Names the first word that the parser did not know.
std::string unexpected(const CLI::App& program, const std::string& command, const CLI::App& innermost) {
  const std::vector<std::string> left = program.remaining(true);
  const std::string word = left.empty() ? std::string() : left.front().substr(0, left.front().find('='));
  if (word.empty() || word.front() != '-') return command + ": unexpected argument \"" + word + "\"";
  std::vector<std::string> known;
  for (const CLI::Option* option : innermost.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return command + ": unknown option \"" + word + "\"" + did_you_mean(word, known);
}

// "--stages = 99999999999", a number that its option cannot hold, with the largest or smallest that it can.
std::string out_of_range(const CLI::App& command, const std::string& failed) {
  constexpr std::string_view kEquals = " = ";
  const std::size_t at = failed.find(kEquals);
  const std::string name = failed.substr(0, at), found = failed.substr(at + kEquals.size());
  const CLI::Option* const option = command.get_option_no_throw(name);
  const bool sign = option == nullptr || !option->get_type_name().starts_with("UINT");
  std::int64_t value = 0;  // fits 64 bits and is too large for 32
  const bool is_wide =
      std::from_chars(found.data(), found.data() + found.size(), value).ec == std::errc::result_out_of_range;
  if (found.starts_with('-'))
    return name + ": expected an integer >= " + std::to_string(is_wide ? INT64_MIN : INT32_MIN) + ", found " +
           found;
  const std::uint64_t most = sign ? (is_wide ? INT64_MAX : INT32_MAX) : (is_wide ? UINT64_MAX : UINT32_MAX);
  return name + ": expected an integer <= " + std::to_string(most) + ", found " + found;
}

// Describes a failed parse in one line.
std::string explained(CLI::App& program, const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::vector<CLI::App*> path = parsed_commands(program);
  const std::string command = all_joined(path, " ", [](const CLI::App* one) { return one->get_name(); });
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    text = unexpected(program, command, *path.back());
  else if (text.starts_with(kConversion))  // refuse_odd_values has refused all others but those out of range
    return out_of_range(*path.back(), text.substr(kConversion.size()));
  else if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr)
    return text;  // which names the option, what was found and what is allowed
  else
    text = command + ": " + text;
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    for (const CLI::Option* option : path.back()->get_options())
      if (text.ends_with(": " + option->get_name() + " is required"))
        text += ": " + option->get_description();
  return text + " (`" + command + " --help` lists what there is)";
}

}  // namespace

CLI::App& add_command(CLI::App& group, const std::string& name, const std::string& summary,
                      const std::string& footer) {
  CLI::App& command = *group.add_subcommand(name, summary);
  command.footer(footer);
  return command;
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::int64_t& variable,
                      const std::string& help) {
  return command.add_option_function<std::string>(
      name,
      [&variable, name](const std::string& text) {
        if (!text.empty()) variable = parse_length(text, name);
      },
      help);
}

CLI::Option* add_lengths(CLI::App& command, const std::string& name, std::vector<std::int64_t>& variable,
                         const std::string& help) {
  return command.add_option_function<std::string>(
      name, [&variable, name](const std::string& text) { variable = parse_lengths(text, name); }, help);
}

CLI::Option* add_format_option(CLI::App& command, Format& format, const std::string& help) {
  return command
      .add_option_function<std::string>(
          "--format", [&format](const std::string& text) { format = parse_format(text); }, help)
      ->default_str(std::string(kFormatNames[static_cast<std::size_t>(format)]));
}

CLI::Option* add_memory_option(CLI::App& command, MemoryLimit& limit) {
  return at_least(kLeastMemoryGB,
                  command.add_option_function<double>(
                      "--max-memory-GB", [&limit](const double& most_GB) { limit = memory_limit(most_GB); },
                      "Most memory to plan for; the least of 80% of the machine's, the cgroup's and "
                      "RLIMIT_AS by default"));
}

CLI::Option* add_jobs_option(CLI::App& command, int& jobs, const std::string& help) {
  constexpr int kMostThreads = 4096;
  return command
      .add_option_function<int>(
          "--jobs", [&jobs](const int& typed) { jobs = typed > 0 ? typed : all_cores(); }, help)
      ->check(CLI::Range(0, kMostThreads));
}

CLI::Option* at_least(double least, CLI::Option* option) {
  return option->check([least](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || value >= least) return std::string();
    return "expected a number >= " + short_number(least) + ", found " + text;
  });
}

CLI::Option* only_with(const std::string& other, CLI::Option* option) {
  return option->group(std::string(kOnlyWith) + other);
}

int parse_and_run(int argc, char** argv) {
  CLI::App program{"Compares packing and sharding policies of long-context training on a simulated cluster",
                   "equipoise"};
  int status = 0;
  program.set_version_flag("--version", EQUIPOISE_VERSION);
  program.require_subcommand(1);
  add_study_commands(program, {argv + 1, argv + argc}, status);
  add_plan_commands(program, status);
  add_profile_commands(program, status);
  add_input_options(program);
  add_manual_commands(program);
  refuse_odd_values(program);
  // CLI11 runs this after it has checked all words; then it runs the command's callback.
  program.parse_complete_callback([&program] {
    for (const CLI::App* command : parsed_commands(program)) note_idle_options(*command);
  });
  check_command_names(program, argc, argv);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return program.exit(done);
  } catch (const CLI::ParseError& error) {
    throw UserError(explained(program, error));
  }
  return status;
}

}  // namespace equipoise
