// The commands and their options as plain data: completion and manual page say what --help says.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace equipoise {

struct OptionText {
  std::string name;  // "--out"; of a positional its bare name
  std::string help;
  std::string fallback;  // its default, where --help prints one
  bool takes_value = true;
};

struct CommandText {
  std::string name;  // one word; of the program "equipoise"
  std::string summary;
  std::string example;  // the line after "Example: "
  std::vector<OptionText> positionals;
  std::vector<OptionText> options;  // without --help
  std::vector<CommandText> commands;
};

CommandText command_text(const CLI::App& app);

}  // namespace equipoise
