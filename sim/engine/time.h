// The engine's clock: exact integer picoseconds, so that simultaneous events are simultaneous and results do
// not depend on the order of additions. int64 holds 106 days.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace equipoise {

// A fault inside a simulation (exit 3): a stall, a receive without its send, a size mismatch, a time that is
// no number. Never the user's input, which is a UserError.
class EngineError : public std::runtime_error {
 public:
  explicit EngineError(const std::string& message) : std::runtime_error(message) {}
};

using SimTime = std::int64_t;  // picoseconds

inline constexpr double kPicosecondsPerSecond = 1e12;
inline constexpr double kLongestSeconds = 9.0e6;  // of one task; 2^63 ps is 9.22e6 s

// Nearest picosecond. Throws EngineError for NaN, infinity, a negative time and what the clock cannot hold.
inline SimTime checked_sim_time(double seconds) {
  if (!(seconds >= 0) || seconds > kLongestSeconds)
    throw EngineError("a task's duration is " + std::to_string(seconds) + " s; expected 0 to " +
                      std::to_string(kLongestSeconds));
  return std::llround(seconds * kPicosecondsPerSecond);
}

}  // namespace equipoise
