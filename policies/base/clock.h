// The clock of both engines and of every model that feeds them: exact integer picoseconds, so that
// simultaneous events are simultaneous and results do not depend on the order of additions. int64 holds 106
// days.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "policies/base/error.h"

namespace equipoise {

using Picoseconds = std::int64_t;  // a plain count: sums over many ranks in hot loops

inline constexpr double kPicosecondsPerSecond = 1e12;
inline constexpr double kLongestSeconds = 9.0e6;  // of one op; 2^63 ps is 9.22e6 s

// Nearest picosecond. Throws EngineError for NaN, infinity, a negative time and what the clock cannot hold.
inline Picoseconds to_picoseconds(double seconds) {
  if (!(seconds >= 0) || seconds > kLongestSeconds) [[unlikely]]
    throw EngineError("a task's duration is " + std::to_string(seconds) + " s; expected 0 to " +
                      std::to_string(kLongestSeconds));
  return std::llround(seconds * kPicosecondsPerSecond);
}
inline double to_seconds(Picoseconds time) {
  return static_cast<double>(time) * 1e-12;
}

}  // namespace equipoise
