// Fits a launch, a bandwidth in the cache and one beyond it to one elementwise op.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/fit/table_fits.h"
#include "profiler/profile/elementwise_form.h"

namespace equipoise {
namespace {

constexpr double kMostBytes = 1e15;
constexpr double kMeasuredPower = 4;
constexpr double kCacheShare = 0.25;  // where the search for the cache's size starts, of the largest tensors

}  // namespace

nlohmann::json fit_elementwise(std::span<const ElementwiseSample* const> samples, Provenance kind) {
  FitProblem problem;
  std::vector<const Labels*> labels;
  std::vector<double> seconds;
  double least_bytes = 1e300;
  double most_bytes = 0;
  double fewest_us = 1e300;
  double fastest_GBps = 0;
  for (const ElementwiseSample* sample : samples) {
    problem.shapes.push_back({sample->rows, sample->columns, sample->bytes});
    labels.push_back(&sample->labels);
    seconds.push_back(sample->seconds);
    least_bytes = std::min(least_bytes, sample->bytes);
    most_bytes = std::max(most_bytes, sample->bytes);
    fewest_us = std::min(fewest_us, sample->seconds * 1e6);
    fastest_GBps = std::max(fastest_GBps, sample->bytes * 1e-9 / sample->seconds);
  }
  // The cache is faster than memory by a gain that starts at next to nothing: samples that know of no cache
  // then leave the memory's rate alone.
  problem.parameters = {{"launch_us", fewest_us, 1},
                        {"memory_GBps", fastest_GBps, 1},
                        {"cache_gain", 0.001, 4},
                        {"cache_MB", kCacheShare * most_bytes * 1e-6, 1}};
  const double power = kind == Provenance::measured ? kMeasuredPower : ElementwiseParameters{}.cache_power;
  const auto form_of = [power](std::span<const double> p) {
    return ElementwiseParameters{p[0], p[1], p[3], p[1] * (1 + p[2]), power};
  };
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return std::log(elementwise_seconds(form_of(p), samples[i]->bytes) / samples[i]->seconds);
  };
  const GroupFit fit = fit_group(problem);
  ElementwiseParameters kept = form_of(fit.parameters);
  for (double* value : {&kept.launch_us, &kept.memory_GBps, &kept.cache_MB, &kept.cache_GBps})
    *value = significant(*value);
  nlohmann::json table = {{"form", "launch-and-bandwidth"},
                          {"parameters", to_json(kept)},
                          {"provenance", provenance_json(kind, labels)}};
  table["ranges"] = {{"bytes", range_json(least_bytes, most_bytes, 0, kMostBytes)}};
  report_errors(fit, {{"all", std::vector<bool>(samples.size(), true)}}, seconds, kind, table);
  return table;
}

}  // namespace equipoise
