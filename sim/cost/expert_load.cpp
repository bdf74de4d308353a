#include "sim/cost/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "policies/base/random.h"

namespace equipoise {
namespace {

// Loads of less are even to a millionth; the shapes of far less are infinite.
constexpr double kLeastSkew = 1e-6;

// In (0, 1).
double uniform(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
}

double normal(SplitMix64& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// Of mean `shape` and variance `shape` (Marsaglia and Tsang, 2000). Below a shape of 1, one of shape + 1
// times a power of a uniform number.
double gamma(double shape, SplitMix64& random) {
  if (shape < 1) return gamma(shape + 1, random) * std::pow(uniform(random), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform(random)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

double expert_load(std::span<const MicroBatch* const> meeting, RouterSkew skew, int ranks,
                   int experts_of_rank) {
  const auto holds_none = [](const MicroBatch* micro_batch) { return micro_batch->tokens() == 0; };
  if (skew.skew < kLeastSkew || ranks < 2 || std::all_of(meeting.begin(), meeting.end(), holds_none))
    return 1;
  const double shape = experts_of_rank / (skew.skew * skew.skew);  // of a rank's experts together
  std::vector<double> load(static_cast<std::size_t>(ranks), 0);
  for (const MicroBatch* const micro_batch : meeting)
    for (const Slice& slice : micro_batch->slices) {
      SplitMix64 random(SplitMix64(skew.seed).next() ^
                        SplitMix64(static_cast<std::uint64_t>(slice.document)).next());
      for (double& of_rank : load)
        of_rank += static_cast<double>(slice.tokens()) * gamma(shape, random) / shape;
    }
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  return std::max(1.0, *std::max_element(load.begin(), load.end()) * ranks / sum);
}

}  // namespace equipoise
