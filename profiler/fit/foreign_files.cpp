#include "profiler/fit/foreign_files.h"

namespace equipoise {

std::string shown(const ForeignFile& file) {
  std::string text = file.tool + ": " + std::to_string(file.used) + " samples";
  if (!file.what.empty()) text += " of " + file.what;
  if (!file.gpu.empty()) text += ", " + file.gpu;
  std::string separator = "; left out: ";
  for (const auto& [reason, count] : file.left_out) {
    text += separator + std::to_string(count) + " " + reason;
    separator = ", ";
  }
  return text;
}

}  // namespace equipoise
