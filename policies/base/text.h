// Text that users write and read: numbers, names that may be misspelt, and bytes that a terminal can show.
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

// Text, letters and whole numbers, one after the other.
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

// As printf writes it, at most 199 letters.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* pattern, ...);
std::string fixed(double value, int digits);               // fixed-point text; "-" where there is no number
std::string grouped(std::int64_t value);                   // 1,234,567
// 1 step, 2 steps, 3 batches, 4 entries
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  const std::string one = grouped(static_cast<std::int64_t>(count)).append(" ").append(noun);
  if (count == 1) return one;
  return one.back() == 'y' ? one.substr(0, one.size() - 1) + "ies" : one + (one.back() == 'h' ? "es" : "s");
}
std::string percent(double share, int digits = 1);         // 12.5 %
std::string signed_percent(double share, int digits = 1);  // +12.5 %, -3.0 %
double rounded(double value, int digits);                  // to so many digits behind the point

// Sizes as users write them: 8192, 8K (1024), 1M (1024^2). Whether `text` is one; `value` is set where it is.
// At most 2^42 before K or M, so that nothing overflows.
bool parse_size(std::string_view text, std::int64_t& value);

// --- Names: looking up what a user named, and what is said where there is no such name.

// Nearest of `known` to `name` by edit distance: within two edits or a third of its letters, or begun by what
// was typed; empty if nothing is near.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// `, did you mean "wlb"?`, or nothing. A container of strings or views.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> known);
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// What `text_of` says of each item, whole, `between` them: "a, b, c". Items of which it says nothing are left out.
template <class Items, class TextOf = std::identity>
std::string all_joined(const Items& items, std::string_view between = ", ", const TextOf& text_of = {}) {
  std::string text;
  for (const auto& item : items) {
    const auto& said = std::invoke(text_of, item);
    if (!said.empty()) text.append(text.empty() ? "" : between).append(said);
  }
  return text;
}

// A name of a list: in quotes where a comma of its own would let it run together with its neighbours.
std::string listed(std::string_view name);

// "a, b, c"; of a long list its beginning and "and 7 more", so that a message stays one line.
std::string joined(std::span<const std::string_view> names);
// The one form of a note on what is typed and changes nothing: "KEY has no effect: it acts only WITH THIS".
std::string no_effect(std::string_view what, std::string_view acts_when);
std::string joined(const std::vector<std::string>& names);

// Position of `text` among `names`. Throws UserError: `<what>: expected one of a, b, found x`.
std::size_t choice_of(std::string_view text, std::string_view what, std::span<const std::string_view> names);

// Throws UserError: `<what>: unknown name "x", did you mean "y"? (known: y, z)`.
[[noreturn]] void refuse_name(std::string_view what, std::string_view name,
                              std::span<const std::string_view> known);

// The row of a table whose member `name` is that name. Throws as refuse_name.
template <class Rows>
const auto& find_named(const Rows& rows, std::string_view name, std::string_view what) {
  std::vector<std::string_view> known;
  for (const auto& row : rows) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  refuse_name(what, name, known);
}

// --- Bytes of users' names and files: whether they are UTF-8, and how a terminal can show them.

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
