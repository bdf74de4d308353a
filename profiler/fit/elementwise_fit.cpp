// Fits a launch, a bandwidth in the cache and one beyond it to one elementwise op.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/fit/table_fits.h"
#include "profiler/profile/elementwise.h"

namespace equipoise {
namespace {

constexpr double kMostElementwiseBytes = 1e15;
constexpr double kMeasuredPower = 4;
constexpr double kCacheShare = 0.25;  // where the search for the cache's size starts, of the largest tensors

}  // namespace

nlohmann::json fit_elementwise(std::span<const ElementwiseSample* const> samples, Provenance kind) {
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
  // The cache is faster than memory by a gain that starts at next to nothing: samples that know of no cache
  // then leave the memory's rate alone.
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
  return table_json(
      {"launch-and-bandwidth", to_json(rounded), {{"bytes", range_json(bytes, 0, kMostElementwiseBytes)}}},
      fit, times, kind);
}

}  // namespace equipoise
