// Text for users: numbers, lookups of names that may be misspelt, and bytes that a terminal can show.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Joins text, letters and whole numbers.
std::string concatenated(const auto&... parts) {
  std::string text;
  const auto add = [&]<class Part>(const Part& part) {
    if constexpr (std::same_as<Part, char>)
      text += part;
    else if constexpr (std::integral<Part>)
      text += std::to_string(part);
    else
      text += std::string_view(part);
  };
  (add(parts), ...);
  return text;
}

// Formats as printf does, with at most 199 letters.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* pattern, ...);
std::string fixed(double value, int digits);  // fixed-point text; "-" where there is no number
std::string grouped(std::int64_t value);      // 1,234,567
// 1 step, 2 steps, 3 batches, 4 entries
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  const std::string one = grouped(static_cast<std::int64_t>(count)).append(" ").append(noun);
  if (count == 1) return one;
  return one.back() == 'y' ? one.substr(0, one.size() - 1) + "ies" : one + (one.back() == 'h' ? "es" : "s");
}
std::string percent(double share, int digits = 1);         // 12.5 %
std::string signed_percent(double share, int digits = 1);  // +12.5 %, -3.0 %
double rounded(double value, int digits);                  // rounds to so many digits after the point

// Parses a size as users write it: 8192, 8K (1024), 1M (1024^2). Returns whether `text` is a size and sets
// `value`. The number before K or M is at most 2^42, so that nothing overflows.
bool parse_size(std::string_view text, std::int64_t& value);

// --- Names: lookup of a name that a user typed, and the message where it does not exist.

// The nearest of `known` to `name` by edit distance, within two edits or a third of its letters; or a known
// name that begins with `name`. Empty if none is near.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// `, did you mean "wlb"?`, or nothing. `known` is a container of strings or views.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> known);
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// Joins the texts that `text_of` gives for all items, with `between` in between: "a, b, c". Skips empty
// texts.
template <class Items, class TextOf = std::identity>
std::string all_joined(const Items& items, std::string_view between = ", ", const TextOf& text_of = {}) {
  std::string text;
  for (const auto& item : items) {
    const auto& said = std::invoke(text_of, item);
    if (!said.empty()) text.append(text.empty() ? "" : between).append(said);
  }
  return text;
}

// A name for a list, in quotes where it contains a comma.
std::string listed(std::string_view name);

// "a, b, c". A long list is cut to its beginning and "and 7 more", so that a message stays one line.
std::string joined(std::span<const std::string_view> names);
std::string joined(const std::vector<std::string>& names);

// The index of `text` in `names`. Throws UserError: `<what>: expected one of a, b, found x`.
std::size_t choice_of(std::string_view text, std::string_view what, std::span<const std::string_view> names);

// Throws UserError: `<what>: unknown name "x", did you mean "y"? (known: y, z)`.
[[noreturn]] void refuse_name(std::string_view what, std::string_view name,
                              std::span<const std::string_view> known);

// The row of a table whose member `name` equals the name. Throws the error of refuse_name.
template <class Rows>
const auto& find_named(const Rows& rows, std::string_view name, std::string_view what) {
  std::vector<std::string_view> known;
  for (const auto& row : rows) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  refuse_name(what, name, known);
}

// --- Bytes of users' names and files: checks of UTF-8, and forms that a terminal can show.

// The number of bytes at the start of `text` that are well-formed UTF-8.
std::size_t utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) {
  return utf8_prefix(text) == text.size();
}

// Escapes everything that moves a cursor or changes a terminal: control characters (C0, DEL, C1, and marks
// that change the direction of writing) become \n, \t, \x1b, \u202e, and bytes that are no UTF-8 become \xff.
std::string printable(std::string_view text);

// The same for several lines, whose line breaks and tabs are kept.
std::string printable_lines(std::string_view text);

}  // namespace equipoise
