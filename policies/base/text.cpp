#include "policies/base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <system_error>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {

std::string formatted(const char* pattern, ...) {
  char text[200];
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string percent(double share, int digits) {
  return std::isfinite(share) ? fixed(100 * share, digits) + " %" : "-";
}

std::string signed_percent(double share, int digits) {
  const std::string text = percent(share, digits);
  return text.front() == '-' ? text : "+" + text;
}

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

bool parse_size(std::string_view text, std::int64_t& value) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 42;
  std::int64_t scale = 1;
  if (!text.empty()) {
    const char last = text.back();
    if (last == 'K' || last == 'k') scale = 1024;
    if (last == 'M' || last == 'm') scale = 1024 * 1024;
    if (scale > 1) text.remove_suffix(1);
  }
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end || value > kLargest || value < -kLargest) return false;
  value *= scale;
  return true;
}

// --- Names. Lookups take O(names * letters^2), with few and short names.

static std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row = positions(b.size() + 1);
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

static std::size_t common_ending(std::string_view a, std::string_view b) {
  std::size_t letters = 0;
  while (letters < std::min(a.size(), b.size()) && a[a.size() - 1 - letters] == b[b.size() - 1 - letters])
    ++letters;
  return letters;
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  std::size_t best_distance = 0;
  for (const std::string_view candidate : known) {
    const bool begins = name.size() >= 3 && candidate.substr(0, name.size()) == name;
    const std::size_t distance = begins ? 0 : edit_distance(name, candidate);
    const std::size_t allowed = std::max<std::size_t>(2, std::max(name.size(), candidate.size()) / 3);
    // Two names may be equally near: the one with the same ending wins, so "llama3-70b" gives llama3.1-70b,
    // not llama2-7b.
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

std::string listed(std::string_view name) {
  std::string text(name);
  return name.find(',') == std::string_view::npos ? text : '"' + text + '"';
}

std::string joined(std::span<const std::string_view> names) {
  constexpr std::size_t kMostShown = 300;  // the most letters shown, so that a message stays one line
  std::string text;
  std::size_t shown = 0;
  for (const std::string_view name : names) {
    if (text.size() + name.size() > kMostShown) break;
    text.append(text.empty() ? "" : ", ").append(listed(name));
    ++shown;
  }
  if (shown < names.size()) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
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

// --- Bytes.

namespace {

// The character at the start of `text` and its number of bytes; 0 bytes where it is not well-formed, as
// overlong forms and surrogates are.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, bytes};
}

bool is_control(std::uint32_t code) {
  const bool direction = code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                         (code >= 0x2066 && code <= 0x2069);
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfffe ||
         code == 0xffff || direction;  // XML allows neither of the last two
}

std::string escaped(std::uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return code < 0x80 ? formatted("\\x%02x", code) : formatted("\\u%04x", code);
}

std::string shown(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    if (next.bytes == 0) {
      out += formatted("\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      text.remove_prefix(1);
      continue;
    }
    if (is_control(next.code) && kept.find(text[0]) == std::string_view::npos)
      out += escaped(next.code);
    else
      out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace

std::size_t utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Character next = first_character(text.substr(at));
    if (next.bytes == 0) return at;
    at += next.bytes;
  }
  return at;
}

std::string printable(std::string_view text) {
  return shown(text, "");
}

std::string printable_lines(std::string_view text) {
  return shown(text, "\n\t");
}

}  // namespace equipoise
