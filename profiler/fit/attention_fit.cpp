// Fits the tiles-on-SMs form to one kernel and direction.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "profiler/fit/table_fits.h"

namespace equipoise {
namespace {

// Backward, by counting: K, V, dK, dV against Q, O, dO, dQ and dQ's fp32 sums (zeroed, added to, converted).
constexpr double kBackwardKeyShare = 0.4;
constexpr std::size_t kParameters = 12;

// Proportions of a fused kernel on a current GPU; the first calibration moves all times to the device at
// hand.
AttentionParameters typical() {
  AttentionParameters fit;
  fit.launch_us = 6;
  fit.tile_us = 0.5;
  fit.tile_us_per_128 = 0.2;
  fit.block_us = 0.5;
  fit.block_us_per_128 = 1.0;
  fit.block_us_per_128_above = 0.1;
  fit.row_share = 0.05;
  fit.diagonal_blocks = 0.3;
  fit.imbalance_power = 2;
  fit.memory_GBps = 2500;
  return fit;
}

std::vector<double> attention_vector(const AttentionParameters& fit) {
  return {fit.launch_us,   fit.tile_us,          fit.tile_us_per_128,
          fit.block_us,    fit.block_us_per_128, fit.block_us_per_128_above,
          fit.row_share,   fit.diagonal_blocks,  fit.imbalance_power,
          fit.memory_GBps, fit.key_share,        fit.host_us};
}

AttentionParameters attention_of(std::span<const double> p) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11]};
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A sample with its packings counted: the search asks for them at every step.
struct CountedSample {
  const AttentionSample* sample = nullptr;
  std::vector<AttentionWork> works;

  // Mean over the row's possible packings of ln(observed form / measured).
  [[nodiscard]] double log_error(const AttentionParameters& fit, double sms) const {
    double sum = 0;
    for (std::size_t i = 0; i < works.size(); ++i)
      sum += std::log(observed_attention_seconds(fit, sample->heads, sms, works[i]) / sample->seconds[i]);
    return sum / static_cast<double>(works.size());
  }
};

std::vector<CountedSample> counted(std::span<const AttentionSample* const> samples, DocumentMask apart) {
  std::vector<CountedSample> made;
  for (const AttentionSample* sample : samples) {
    made.push_back({sample, {}});
    for (const auto& documents : sample->packings)
      made.back().works.push_back(attention_work(sample->mask, apart, documents));
  }
  return made;
}

// Scales every time of `fit` so that the median sample is met.
void calibrate(AttentionParameters& fit, const std::vector<CountedSample>& samples, double sms) {
  std::vector<double> errors;
  for (const CountedSample& sample : samples) errors.push_back(sample.log_error(fit, sms));
  const double scale = std::exp(-middle(errors));
  fit.tile_us *= scale;
  fit.tile_us_per_128 *= scale;
  fit.block_us *= scale;
  fit.block_us_per_128 *= scale;
  fit.block_us_per_128_above *= scale;
  fit.memory_GBps /= scale;
}

}  // namespace

nlohmann::json attention_ranges(const Covered& keys, const Covered& queries, const Covered& dims,
                                const Covered& heads) {
  constexpr double kLongestKeys = 4.0 * 1024 * 1024;
  return {{"keys", range_json(1, keys.high, 1, kLongestKeys)},
          {"queries", range_json(queries.low, keys.high, 1, kLongestKeys)},
          {"head_dim", range_json(dims, 16, 256)},
          {"query_heads", range_json(heads, 1, 1024)}};
}

nlohmann::json fit_attention(std::span<const AttentionSample* const> samples, double sms, DocumentMask apart,
                             Provenance kind) {
  const std::vector<CountedSample> calls = counted(samples, apart);
  AttentionParameters start = typical();
  if (samples[0]->pass != "forward") start.key_share = kBackwardKeyShare;
  calibrate(start, calls, sms);
  double fewest_us = 1e300;
  Covered dims;
  for (const AttentionSample* sample : samples) {
    for (const double seconds : sample->seconds) fewest_us = std::min(fewest_us, seconds * 1e6);
    dims.add(sample->heads.head_dim);
  }
  if (dims.high <= 128) start.block_us_per_128_above = 0;
  // Our own profiler times the device, not the host that feeds it.
  start.host_us = kind == Provenance::measured ? 0 : 0.8 * fewest_us;
  start.launch_us = std::min(start.launch_us, 0.3 * fewest_us);

  FitProblem problem;
  const std::vector<double> first = attention_vector(start);
  const char* names[kParameters] = {
      "launch_us", "tile_us",         "tile_us_per_128", "block_us",    "block_us_per_128", "block_us_above",
      "row_share", "diagonal_blocks", "imbalance_power", "memory_GBps", "key_share",        "host_us"};
  const double trust[kParameters] = {0.5, 1, 1, 0.7, 0.4, 1, 2, 1, 0.4, 0.6, 0.3, 0.5};
  for (std::size_t i = 0; i < kParameters; ++i) problem.parameters.push_back({names[i], first[i], trust[i]});
  SampleTimes times;
  Covered keys;
  Covered queries;
  Covered heads;
  for (const AttentionSample* sample : samples) {
    problem.shapes.push_back(sample->shape);
    problem.uncertainty.push_back(sample->uncertainty);
    times.add(sample->labels, sample->seconds[0]);
    keys.add(static_cast<double>(sample->most_keys));
    queries.add(static_cast<double>(sample->least_queries));
    heads.add(sample->heads.query_heads);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return calls[i].log_error(attention_of(p), sms);
  };
  const GroupFit fit = fit_group(problem);
  nlohmann::json table = table_json(
      {"tiles-on-sms", to_json(attention_of(kept(fit))), attention_ranges(keys, queries, dims, heads)}, fit,
      times, kind);
  if (apart != DocumentMask::varlen) table["document_mask"] = kDocumentMaskNames[at(apart)];
  return table;
}

}  // namespace equipoise
