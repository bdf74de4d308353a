// Both engines and all models share a clock of integer picoseconds. It is exact, so simultaneous events have
// equal times and results do not depend on the order of additions. int64 holds 106 days.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "policies/base/error.h"

namespace equipoise {

using Picoseconds = std::int64_t;  // a plain count, for sums over many ranks in hot loops

inline constexpr double kPicosecondsPerSecond = 1e12;
inline constexpr double kLongestSeconds = 9.0e6;  // the longest time; 2^63 ps is 9.22e6 s
inline constexpr double kLongestOpSeconds =
    4.5e5;  // the longest op, so that the dozen ops between two exchanges do not overflow

// A time that overflows is a user's error, since it follows from a profile, a model's sizes or a slowdown. A
// study refuses the row, and a command ends.
[[noreturn]] inline void refuse_time(const std::string& what, double seconds) {
  throw UserError(what, " takes ", formatted("%.3g", seconds),
                  " s, which no clock of ours holds; expected smaller sizes, or a profile whose numbers give "
                  "times");
}

// Rounds to the nearest picosecond. Throws UserError for NaN, infinity, a negative time and a time that the
// clock cannot hold.
inline Picoseconds to_picoseconds(double seconds) {
  if (!(seconds >= 0) || seconds > kLongestOpSeconds) [[unlikely]]
    refuse_time("an op", seconds);
  return std::llround(seconds * kPicosecondsPerSecond);
}
inline double to_seconds(Picoseconds time) {
  return static_cast<double>(time) * 1e-12;
}

}  // namespace equipoise
