// One cell of a CSV line (RFC 4180): quoted where it holds a separator, a quote or a line end.
#pragma once

#include <string>
#include <string_view>

namespace equipoise {

inline std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace equipoise
