// The command line as data: what each command is called, what it takes and what it does. The parser with its
// --help, the manual page and the completion of shells are made from this one description.
//
//   const auto options = std::make_shared<CheckOptions>();
//   Command check{"check", "Hold a study's policy speed-ups against what is expected", "Example: ..."};
//   check.add("file", options->file, "Study file (JSON)").required();
//   check.add("--jobs", options->jobs, "Threads; all cores by default").range(0, 4096);
//   check.run = [options] { return run_check_command(*options, ...); };
//
// Only parser.cpp includes CLI11, which costs each file that includes it 7-8 s of CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

// One thing that may be typed after a command.
struct Argument {
  // The variable that gets what is typed. A bool is a flag, a vector takes several words, integers of a
  // vector are sizes such as 4K. A text instead of a variable is printed, and no command runs.
  using Target = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, Format*,
                              std::vector<double>*, std::vector<std::string>*, std::vector<std::int64_t>*,
                              std::string_view>;

  std::string name;  // "--out"; of a positional "file"; of an argument that is both "--samples,samples"
  std::string help;
  Target target;
  std::string fallback = {};  // the default, where --help prints it
  bool is_required = false;
  bool is_size = false;         // an integer is written as 4K, 128M
  bool is_split = false;        // several words may be one: a,b,c
  bool takes_last = false;      // it may be typed several times, and the last counts
  bool refuses_zero = false;    // 0 stands for "not typed" in the variable
  double least = 0, most = -1;  // what is allowed; anything where most < least
  std::string acts_with =
      {};  // "--out", "--fidelity op": without it this one changes nothing, and a note says so
  std::string needs = {};  // another option without which this one is refused

  Argument& required() { return is_required = true, *this; }
  Argument& size() { return is_size = true, *this; }
  Argument& split() { return is_split = true, *this; }
  Argument& acting(std::string with) { return acts_with = std::move(with), *this; }
  Argument& range(double from, double to) { return least = from, most = to, *this; }
  // --help shows this text, or the value that the variable has now.
  Argument& shows_default(std::string text) { return fallback = std::move(text), *this; }
  Argument& shows_default();

  [[nodiscard]] bool takes_value() const;        // no flag
  [[nodiscard]] std::string option() const;      // "--out"; empty for a positional
  [[nodiscard]] std::string positional() const;  // "file"; empty for an option
};

struct Command {
  std::string name;  // one word
  std::string summary;
  std::string footer = {};  // examples, at the end of --help
  std::vector<Argument> arguments = {};
  std::vector<Command> commands = {};            // "trace" has "info", "convert", ...
  std::function<int()> run = {};                 // returns the exit status; none: one of `commands` is needed
  std::vector<std::string>* verbatim = nullptr;  // gets all words after the command, options included

  // The reference is valid until the next argument is added.
  Argument& add(std::string argument, Argument::Target target, std::string help);
  template <class Value>
  Argument& add(std::string argument, Value& variable, std::string help) {
    return add(std::move(argument), Argument::Target(&variable), std::move(help));
  }
  // The command with what it runs, which gives the exit status: 0 where it returns nothing.
  template <class Body>
  Command doing(Body body) {
    if constexpr (std::is_void_v<decltype(body())>)
      run = [body] { return body(), 0; };
    else
      run = body;
    return std::move(*this);
  }
};

// --max-memory-GB, of every command in which a typed number decides an allocation.
void add_memory_option(Command& command, double& max_memory_GB);
// --format, with the variable's value as the default.
void add_format_option(Command& command, Format& format, const std::string& help = "table, json or csv");

Command grammar_of_study();
Command grammar_of_check();
Command grammar_of_verify();
Command grammar_of_tune();
Command grammar_of_merge();
Command grammar_of_export();
Command grammar_of_report();
// `arguments`: those of the program, for the ranks that the command starts.
Command grammar_of_execute(const std::vector<std::string>& arguments);
Command grammar_of_validate(const std::vector<std::string>& arguments);
Command grammar_of_pack();
Command grammar_of_shard();
Command grammar_of_schedule();
Command grammar_of_trace();
Command grammar_of_list();
Command grammar_of_explain();
Command grammar_of_doctor(std::string_view version);
Command grammar_of_profile();
Command grammar_of_fit();
Command grammar_of_profiles();
Command grammar_of_predict();
// What `program` says of itself to shells and to man(1).
Command grammar_of_completion(const Command& program);
Command grammar_of_manual(const Command& program);

// Parses the words and runs the command that they name. Returns the exit status; throws UserError, in one
// line that names the command, what was found and what would do.
int parse_and_run(const Command& program, int argc, char** argv);

}  // namespace equipoise
