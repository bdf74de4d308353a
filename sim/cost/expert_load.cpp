#include "sim/cost/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/random.h"

namespace equipoise {

namespace {

// Smaller skews give loads that are even to a millionth; the shapes of much smaller ones are infinite.
constexpr double kLeastSkew = 1e-6;

// In (0, 1).
double uniform(SplitMix64& random) {
  return (as_double(random.next() >> 11) + 0.5) * 0x1p-53;
}

double normal(SplitMix64& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// A draw of mean `shape` and variance `shape` (Marsaglia and Tsang, 2000). Below a shape of 1, one of shape +
// 1 times a power of a uniform number.
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

double expert_load(std::span<const MicroBatch* const> together, RouterSkew skew, int ranks,
                   int experts_of_rank) {
  const auto holds_none = [](const MicroBatch* micro_batch) { return micro_batch->tokens() == 0; };
  if (skew.skew < kLeastSkew || ranks < 2 || std::ranges::all_of(together, holds_none)) return 1;
  const double shape = experts_of_rank / (skew.skew * skew.skew);  // for all of a rank's experts
  std::vector<double> load(at(ranks), 0);
  for (const MicroBatch* const micro_batch : together)
    for (const Slice& slice : micro_batch->slices) {
      SplitMix64 random(SplitMix64(skew.seed).next() ^
                        SplitMix64(static_cast<std::uint64_t>(slice.document)).next());
      for (double& of_rank : load) of_rank += as_double(slice.tokens()) * gamma(shape, random) / shape;
    }
  const double sum = sum_of(load);
  return std::max(1.0, *std::max_element(load.begin(), load.end()) * ranks / sum);
}

double router_spread(ExpertRouter router) {
  switch (router) {
    case ExpertRouter::stated:
      return 0;
    case ExpertRouter::loss_free:
      return 0.017;
    case ExpertRouter::auxiliary_loss:
      return 0.23;
    case ExpertRouter::unbalanced:
      return 0.59;
  }
  return 0;
}

double router_load(double spread, std::uint64_t seed, int ranks, int experts_of_rank) {
  if (spread < kLeastSkew || ranks < 2) return 1;
  constexpr int kLayers = 1000;  // which gives the mean of their maxima to within a hundredth of the spread
  const double shape = experts_of_rank / (spread * spread);
  SplitMix64 random(seed);
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    double all = 0, most = 0;
    for (int r = 0; r < ranks; ++r) {
      const double load = gamma(shape, random);
      all += load;
      most = std::max(most, load);
    }
    sum += most * ranks / all;
  }
  return sum / kLayers;
}

}  // namespace equipoise
