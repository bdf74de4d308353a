// Bytes of users' names and files: whether they are UTF-8, and how they can be shown on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace equipoise {

// Bytes from the start of `text` that are well-formed UTF-8: all of them, or up to the first that is not.
std::size_t utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) {
  return utf8_prefix(text) == text.size();
}

// The text without what moves a cursor or changes a terminal: control characters (C0, DEL, C1, and the marks
// that turn the direction of writing) become \n, \t, \x1b, \u202e; bytes that are no UTF-8 become \xff.
// Everything else stays as it is.
std::string printable(std::string_view text);

// The same for several lines: line breaks and tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace equipoise
