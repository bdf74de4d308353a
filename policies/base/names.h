// Looking up what a user named, and what is said where there is no such name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// Nearest of `known` to `name` by edit distance: within two edits or a third of its letters, or begun by what
// was typed; empty if nothing is near.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// `, did you mean "wlb"?`, or nothing. A container of strings or views.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> known);
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// "a, b, c"
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

}  // namespace equipoise
