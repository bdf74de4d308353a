// Text inside HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace equipoise {

// `text` (UTF-8) with what ends a text or a quoted attribute as character references.
inline std::string markup_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace equipoise
