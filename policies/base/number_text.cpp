#include "policies/base/number_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>

namespace equipoise {

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
  return std::isfinite(share) ? fixed(100 * share, digits) + "%" : "-";
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

}  // namespace equipoise
