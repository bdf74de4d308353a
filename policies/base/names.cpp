// O(names * letters^2) on a handful of short names.
#include "policies/base/names.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include "policies/base/error.h"

namespace equipoise {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

std::size_t common_ending(std::string_view a, std::string_view b) {
  std::size_t letters = 0;
  while (letters < std::min(a.size(), b.size()) && a[a.size() - 1 - letters] == b[b.size() - 1 - letters])
    ++letters;
  return letters;
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  std::size_t best_distance = 0;
  for (const std::string_view candidate : known) {
    const bool begins = name.size() >= 3 && candidate.substr(0, name.size()) == name;
    const std::size_t distance = begins ? 1 : edit_distance(name, candidate);
    const std::size_t allowed = std::max<std::size_t>(2, std::max(name.size(), candidate.size()) / 3);
    // Of two as near, the one of the same ending: "llama3-70b" is llama3.1-70b, not llama2-7b.
    const bool ends_alike = common_ending(name, candidate) > common_ending(name, best);
    if (distance <= allowed &&
        (best.empty() || distance < best_distance || (distance == best_distance && ends_alike))) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> known) {
  const std::string_view near = nearest_name(name, known);
  return near.empty() ? std::string() : ", did you mean \"" + std::string(near) + "\"?";
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  return did_you_mean(name, std::vector<std::string_view>(known.begin(), known.end()));
}

std::string joined(std::span<const std::string_view> names) {
  constexpr std::size_t kMostShown = 300;  // of a message that stays one line
  std::string text;
  std::size_t shown = 0;
  for (const std::string_view name : names) {
    if (text.size() + name.size() > kMostShown) break;
    text.append(text.empty() ? "" : ", ").append(name);
    ++shown;
  }
  if (shown < names.size()) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

std::string no_effect(std::string_view what, std::string_view acts_when) {
  return std::string(what).append(" has no effect: it acts only ").append(acts_when);
}

std::string joined(const std::vector<std::string>& names) {
  return joined(std::vector<std::string_view>(names.begin(), names.end()));
}

std::size_t choice_of(std::string_view text, std::string_view what, std::span<const std::string_view> names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw UserError(std::string(what) + ": expected one of " + joined(names) + ", found " + std::string(text));
}

void refuse_name(std::string_view what, std::string_view name, std::span<const std::string_view> known) {
  throw UserError(std::string(what) + ": unknown name \"" + std::string(name) + "\"" +
                  did_you_mean(name, known) + " (known: " + joined(known) + ")");
}

}  // namespace equipoise
