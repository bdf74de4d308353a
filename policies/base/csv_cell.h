// One cell of a CSV line (RFC 4180): quoted where it holds a separator, a quote or a line end. Control
// characters are escaped: tables are shown on terminals, too.
#pragma once

#include <string>
#include <string_view>

#include "policies/base/utf8.h"

namespace equipoise {

inline std::string csv_cell(std::string_view raw) {
  const std::string text = printable_lines(raw);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace equipoise
