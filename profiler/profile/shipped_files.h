// JSON files that come with the program and are known by name: profiles, framework presets.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

struct ShippedFiles {
  const char* kind;         // "profile", for messages
  const char* variable;     // of the environment: the user's own directory, looked into first
  const char* share;        // folder below share/ beside the library that holds this code (a Python
                            // package's), second; below share/equipoise of an installed program, third
  const char* source_tree;  // last
  const char* or_path;      // what else may be given: "the path of a .json file"

  // Names without ".json", sorted, each once.
  [[nodiscard]] std::vector<std::string> names() const;
  // A name, or a path (with a slash, or ending in .json). Throws UserError with the nearest name.
  [[nodiscard]] std::filesystem::path find(std::string_view name_or_path) const;

 private:
  [[nodiscard]] std::vector<std::filesystem::path> directories() const;
};

// A file or folder that comes with the program: below share/equipoise of an installed one, else in the
// sources.
std::filesystem::path shipped_path(const char* share, const char* source_tree);

}  // namespace equipoise
