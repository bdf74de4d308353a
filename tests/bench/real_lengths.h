// Document lengths that somebody's corpus has: the traces shipped in traces/recorded, and those of a folder
// of the user's, which EQUIPOISE_LENGTHS names (plain, .gz, .zst, .npy).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace equipoise {

inline bool is_trace_name(const std::string& name) {
  for (const char* suffix : {".txt", ".gz", ".zst", ".npy"})
    if (name.ends_with(suffix)) return true;
  return false;
}

// Paths, by name.
inline std::vector<std::string> real_length_files() {
  std::vector<std::string> files;
  const auto add = [&](const std::filesystem::path& folder) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (is_trace_name(entry.path().filename().string())) found.push_back(entry.path().string());
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  };
  add(std::filesystem::path(EQUIPOISE_SOURCE_DIR) / "traces/recorded");
  const char* const own = std::getenv("EQUIPOISE_LENGTHS");
  if (own != nullptr && std::filesystem::is_directory(own)) add(own);
  if (own != nullptr && std::filesystem::is_regular_file(own)) files.emplace_back(own);
  return files;
}

// "mixed" of ".../mixed.txt.zst".
inline std::string trace_name(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return name.substr(0, name.find('.'));
}

}  // namespace equipoise
