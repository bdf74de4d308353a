// Text of numbers, as tables, notes and errors show them.
#pragma once

#include <cstdint>
#include <string>

namespace equipoise {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string fixed(double value, int digits);               // fixed-point text; "-" where there is no number
std::string grouped(std::int64_t value);                   // 1,234,567
std::string percent(double share, int digits = 1);         // 12.5%
std::string signed_percent(double share, int digits = 1);  // +12.5%, -3.0%
double rounded(double value, int digits);                  // to so many digits behind the point

}  // namespace equipoise
