// One integer a line. A byte order mark, blank lines and lines that start with # are skipped.
#include <algorithm>
#include <array>
#include <charconv>

#include "policies/base/error.h"
#include "traces/formats/formats.h"

namespace equipoise::formats {

void refuse_length(const std::string& where, std::string_view found) {
  throw UserError(where + ": found " + shown(found) + "; expected a document length, an integer from 1 to " +
                  std::to_string(kLongestDocument) + " (tokens)");
}

std::int64_t parse_length(std::string_view text) {
  if (text.empty()) return -1;
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = std::min<std::int64_t>(value * 10 + (c - '0'), kLongestDocument + 1);
  }
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view found) {
  constexpr std::size_t kShown = 40;
  std::string out = "'";
  for (const char c : found.substr(0, kShown)) out += c >= ' ' && c <= '~' ? c : '?';
  out += '\'';
  if (found.size() > kShown) out += "...";
  return out;
}

Lengths read_text(std::string_view bytes, const std::string& name) {
  Lengths lengths;
  lengths.reserve(bytes.size() / 4);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors write one
  if (bytes.substr(0, kByteOrderMark.size()) == kByteOrderMark) bytes.remove_prefix(kByteOrderMark.size());
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  for (std::int64_t line = 1; at < end; ++line) {
    // The common line, digits up to the newline, is parsed in one pass over its bytes.
    const char* const begin = at;
    std::int64_t value = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - begin < 12) value = value * 10 + (*at++ - '0');
    if ((at == end || *at == '\n') && at != begin && is_length(value)) {
      lengths.push_back(value);
      ++at;
      continue;
    }
    at = std::find(at, end, '\n');
    const std::string_view text = trimmed({begin, static_cast<std::size_t>(at - begin)});
    if (at < end) ++at;
    if (text.empty() || text.front() == '#') continue;
    value = parse_length(text);
    if (!is_length(value)) refuse_length(name + ":" + std::to_string(line), text);
    lengths.push_back(value);
  }
  return lengths;
}

std::string text_bytes(const Lengths& lengths) {
  std::string out;
  out.reserve(lengths.size() * 6);
  std::array<char, 24> digits{};
  for (const std::int64_t length : lengths) {
    const auto [last, error] = std::to_chars(digits.data(), digits.data() + digits.size(), length);
    out.append(digits.data(), static_cast<std::size_t>(last - digits.data()));
    out += '\n';
  }
  return out;
}

}  // namespace equipoise::formats
