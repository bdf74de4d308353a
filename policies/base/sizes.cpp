#include "policies/base/sizes.h"

#include <charconv>
#include <system_error>

namespace equipoise {

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

}  // namespace equipoise
