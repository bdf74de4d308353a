#include "policies/base/number_text.h"

#include <cmath>
#include <cstdio>

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

}  // namespace equipoise
