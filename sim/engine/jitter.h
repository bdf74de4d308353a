// Seeded noise on durations: a function of (seed, key) alone, so that it is the same on any thread count, any
// order of execution and any compiler. No transcendental function: the normal law is approximated by the sum
// of four 16-bit uniform parts of one SplitMix64 output (Irwin-Hall; mean 2, variance 1/3, within 3.5 sigma).
#pragma once

#include <cstdint>

#include "policies/base/clock.h"
#include "policies/base/random.h"

namespace equipoise {

struct Jitter {
  double sigma = 0;  // relative standard deviation; 0: none
  std::uint64_t seed = 0;

  // Mean 0, variance 1.
  [[nodiscard]] double standard_normal(std::uint64_t key) const {
    std::uint64_t bits = SplitMix64(seed ^ (key * 0xd1342543de82ef95ULL)).next();
    std::uint32_t sum = 0;
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<std::uint32_t>(bits & 0xffffU);
    constexpr double kSqrt3 = 1.7320508075688772;
    return (static_cast<double>(sum) / 65536.0 - 2.0 + 2.0 / 65536.0) * kSqrt3;
  }
  // duration * (1 + sigma z), never negative.
  [[nodiscard]] double factor(std::uint64_t key) const {
    const double f = 1.0 + sigma * standard_normal(key);
    return f > 0 ? f : 0;
  }
};

// Rounds to the nearest picosecond.
inline Picoseconds scaled(Picoseconds duration, double factor) {
  return Picoseconds{static_cast<std::int64_t>(static_cast<double>(duration) * factor + 0.5)};
}

}  // namespace equipoise
