// Helpers that every command's output shares.
#include "sim/cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/base/sizes.h"

namespace equipoise {

Format parse_format(std::string_view text) {
  return static_cast<Format>(choice_of(text, "--format", kFormatNames));
}

std::int64_t parse_length(std::string_view text, std::string_view option) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  std::int64_t value = 0;
  if (!parse_size(text, value) || value < 1 || value > kMost)
    throw UserError(std::string(option) +
                    ": expected an integer from 1 to 2^31 (K, M, k and m allowed), found \"" +
                    std::string(text) + '"');
  return value;
}

std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view option) {
  std::vector<std::int64_t> lengths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = std::string(option) + " item " + std::to_string(lengths.size() + 1);
    lengths.push_back(parse_length(text.substr(begin, end - begin), item));
    begin = end + 1;
  }
  return lengths;
}

int terminal_columns() {
  constexpr int kDefault = 100;
  const char* const text = std::getenv("COLUMNS");
  if (text == nullptr) return kDefault;
  const std::string_view view(text);
  int columns = 0;
  const std::from_chars_result parsed = std::from_chars(view.data(), view.data() + view.size(), columns);
  return parsed.ec == std::errc{} && columns > 0 ? columns : kDefault;
}

bool colors_wanted() {
  const char* const no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace equipoise
