// Fits the tiles-and-waves form to matrix products; whole (n, k) shapes are held out.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/fit/table_fits.h"

namespace equipoise {
namespace {

constexpr std::int64_t kManyRows = 2048;  // where errors are reported apart

// Proportions of a current GPU's library; calibration moves all to the device at hand.
constexpr double kTypical[] = {4.4, 2900, 0.35, 800, 720, 450, 450, 200, 1.0, 0.14, 140, 1};
constexpr const char* kNames[] = {"launch_us",      "memory_GBps",   "wave_blend",       "tflops_256x128",
                                  "tflops_128x128", "tflops_128x64", "tflops_64x64",     "tflops_64x16",
                                  "tile_us",        "power_loss",    "power_half_gflop", "split_us"};

GemmParameters gemm_of(std::span<const double> p) {
  GemmParameters fit;
  fit.launch_us = p[0];
  fit.memory_GBps = p[1];
  fit.wave_blend = p[2];
  for (std::size_t t = 0; t < kGemmTiles.size(); ++t) fit.tile_tflops[t] = p[3 + t];
  constexpr std::size_t kNext = 3 + kGemmTiles.size();
  fit.tile_us = p[kNext];
  fit.power_loss = p[kNext + 1];
  fit.power_half_gflop = p[kNext + 2];
  fit.split_us = p[kNext + 3];
  return fit;
}

double log_error(const GemmParameters& fit, double sms, const GemmSample& sample) {
  return std::log(gemm_seconds(GemmForm(fit, sms), sample.m, sample.n, sample.k, sample.groups) /
                  sample.seconds);
}

std::vector<double> calibrated(std::span<const GemmSample* const> samples, double sms) {
  std::vector<double> start(std::begin(kTypical), std::end(kTypical));
  std::vector<double> errors;
  for (const GemmSample* sample : samples) errors.push_back(log_error(gemm_of(start), sms, *sample));
  std::sort(errors.begin(), errors.end());
  const double scale = std::exp(-errors[errors.size() / 2]);
  // Within a factor of 1.5 the typical device is this one, and the prior should hold it there.
  if (scale > 1 / 1.5 && scale < 1.5) return start;
  for (const std::size_t rate : {1U, 3U, 4U, 5U, 6U, 7U, 10U}) start[rate] /= scale;
  start[8] *= scale;
  return start;
}

}  // namespace

nlohmann::json gemm_ranges(const CoveredProducts& covered) {
  constexpr double kLargest = 4.0 * 1024 * 1024;
  return {{"m", range_json(covered.m, 1, kLargest)},
          {"n", range_json(covered.n, 1, kLargest)},
          {"k", range_json(covered.k, 1, kLargest)}};
}

nlohmann::json fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind) {
  FitProblem problem;
  problem.options.prior_weight = 0.1;
  const std::vector<double> start = calibrated(samples, sms);
  for (std::size_t i = 0; i < start.size(); ++i) problem.parameters.push_back({kNames[i], start[i], 1});
  SampleTimes times;
  ErrorGroup many{"m >= 2048", {}};
  ErrorGroup few{"m < 2048", {}};
  CoveredProducts covered;
  for (const GemmSample* sample : samples) {
    problem.shapes.push_back({static_cast<double>(sample->n), static_cast<double>(sample->k)});
    times.add(sample->labels, sample->seconds);
    many.holds.push_back(sample->m >= kManyRows);
    few.holds.push_back(sample->m < kManyRows);
    covered.add(*sample);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return log_error(gemm_of(p), sms, *samples[i]);
  };
  const GroupFit fit = fit_group(problem);
  return table_json({"tiles-and-waves", to_json(gemm_of(kept(fit))), gemm_ranges(covered), {many, few}}, fit,
                    times, kind);
}

}  // namespace equipoise
