// What a file of another tool gave, and which parts of it could not be used.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace equipoise {

struct ForeignFile {
  std::string tool;      // "nccl-tests", "torch.profiler"
  std::string what;      // what was sampled: "all_reduce over 16 GPUs on 2 nodes"
  std::string gpu;       // as the tool names it; empty if it does not
  std::size_t used = 0;  // samples
  std::map<std::string, std::size_t> skipped;  // rows or calls, by reason
  std::string unread = {};  // what else the file has that the reader does not know; may be empty

  void skip(const std::string& reason, std::size_t count = 1) { skipped[reason] += count; }
};

// One line for the user: "nccl-tests: 12 samples of all_reduce ...; skipped: 1 of size 0".
inline std::string shown(const ForeignFile& file) {
  std::string text = file.tool + ": " + std::to_string(file.used) + " samples";
  if (!file.what.empty()) text += " of " + file.what;
  if (!file.gpu.empty()) text += ", " + file.gpu;
  std::string separator = "; skipped: ";
  for (const auto& [reason, count] : file.skipped) {
    text += separator + std::to_string(count) + " " + reason;
    separator = ", ";
  }
  if (!file.unread.empty()) text += "; " + file.unread;
  return text;
}

}  // namespace equipoise
