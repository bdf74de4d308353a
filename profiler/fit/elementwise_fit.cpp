#include "profiler/fit/elementwise_fit.h"

#include <algorithm>
#include <cmath>

namespace equipoise {
namespace {

// How sharply this program's samples pass from cache to memory.
constexpr double kMeasuredPower = 4;
constexpr double kCacheShare = 0.25;  // start of the cache's size, as a share of the largest tensor

}  // namespace

FittedTable fit_elementwise(std::span<const ElementwiseSample* const> samples, Provenance kind) {
  FitProblem problem;
  SampleTimes times;
  Covered bytes;
  double fewest_us = 1e300;
  double fastest_GBps = 0;
  for (const ElementwiseSample* sample : samples) {
    problem.shapes.push_back({sample->rows, sample->columns, sample->bytes});
    times.add(sample->labels, sample->seconds);
    bytes.add(sample->bytes);
    fewest_us = std::min(fewest_us, sample->seconds * 1e6);
    fastest_GBps = std::max(fastest_GBps, sample->bytes * 1e-9 / sample->seconds);
  }
  // The cache is faster than memory by a gain that starts near 0, so that samples without a cache effect
  // leave the memory's rate unchanged.
  problem.parameters = {{"launch_us", fewest_us, 1},
                        {"memory_GBps", fastest_GBps, 1},
                        {"cache_gain", 0.001, 4},
                        {"cache_MB", kCacheShare * bytes.high * 1e-6, 1}};
  const double power = kind == Provenance::measured ? kMeasuredPower : ElementwiseParameters{}.cache_power;
  const auto form_of = [power](std::span<const double> p) {
    return ElementwiseParameters{p[0], p[1], p[3], p[1] * (1 + p[2]), power};
  };
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return std::log(elementwise_seconds(form_of(p), samples[i]->bytes) / samples[i]->seconds);
  };
  const GroupFit fit = fit_group(problem);
  ElementwiseParameters rounded = form_of(fit.parameters);  // the cache's rate, not its gain
  for (double* value : {&rounded.launch_us, &rounded.memory_GBps, &rounded.cache_MB, &rounded.cache_GBps})
    *value = significant(*value);
  return fitted_table({"launch-and-bandwidth", rounded, elementwise_ranges(bytes)}, fit, times, kind);
}

}  // namespace equipoise
