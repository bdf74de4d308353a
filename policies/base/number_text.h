// Text of numbers: as tables, notes and errors show them, and sizes as users write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace equipoise {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string fixed(double value, int digits);               // fixed-point text; "-" where there is no number
std::string grouped(std::int64_t value);                   // 1,234,567
std::string percent(double share, int digits = 1);         // 12.5%
std::string signed_percent(double share, int digits = 1);  // +12.5%, -3.0%
double rounded(double value, int digits);                  // to so many digits behind the point

// Sizes as users write them: 8192, 8K (1024), 1M (1024^2). Whether `text` is one; `value` is set where it is.
// At most 2^42 before K or M, so that nothing overflows.
bool parse_size(std::string_view text, std::int64_t& value);

}  // namespace equipoise
