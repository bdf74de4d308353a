#include "profiler/fit/attention_fit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {
namespace {

// Bytes of keys relative to bytes of queries in the backward pass, by counting. Keys have K, V, dK and dV;
// queries have Q, O, dO, dQ and dQ's fp32 sums, which are zeroed, added to and converted.
constexpr double kBackwardKeyShare = 0.4;
// The same count where passes around a main kernel share the backward's work. The main kernel moves K, V, dK
// and dV against Q and dO. The passes read O and dO, zero and read dQ in fp32, and write dQ.
constexpr double kMainPassKeyShare = 2;
constexpr double kPassRows = 3.5;  // counted, not guessed, so the fit keeps it close

// Proportions of a fused kernel on a current GPU. `calibrate` scales all times to the samples' device.
constexpr double kTypicalSecondCall = 40;
constexpr double kTypicalEmptyTile = 0.1;  // a tile that reads its document's length and returns
constexpr AttentionParameters kTypicalAttention{.launch_us = 6,
                                                .tile_us = 0.5,
                                                .tile_us_per_128 = 0.2,
                                                .block_us = 0.5,
                                                .block_us_per_128 = 1.0,
                                                .block_us_per_128_above = 0.1,
                                                .diagonal_blocks = 0.3,
                                                .imbalance_power = 2,
                                                .memory_GBps = 2500};

AttentionParameters attention_of(std::span<const double> p) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13]};
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A sample whose packings are counted once, since the search needs the counts in every iteration.
struct CountedSample {
  const AttentionSample* sample = nullptr;
  std::vector<AttentionWork> works;

  // ln(form / measured), averaged over the packings that the row may mean.
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
      made.back().works.push_back(attention_work(sample->mask, apart, documents, sample->counted()));
  }
  return made;
}

// Scales every time of `fit` so that it predicts the median sample.
void calibrate(AttentionParameters& fit, const std::vector<CountedSample>& samples, double sms) {
  const auto errors = each_of(samples, [&](const CountedSample& s) { return s.log_error(fit, sms); });
  const double scale = std::exp(-middle(errors));
  fit.tile_us *= scale;
  fit.tile_us_per_128 *= scale;
  fit.block_us *= scale;
  fit.block_us_per_128 *= scale;
  fit.block_us_per_128_above *= scale;
  fit.memory_GBps /= scale;
}

// The parameters of a CPU core start at values for a core with AVX-512 and may move by an order of magnitude.
constexpr double kBlockedTrust = 1.5;

BlockedAttentionParameters blocked_attention_of(std::span<const double> p) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]};
}

// The search begins at the typical kernel, scaled to the samples.
AttentionParameters starting_point(const std::vector<CountedSample>& calls, double sms, PackedGrid grid,
                                   Provenance kind, double largest_head_dim) {
  const AttentionSample& first = *calls[0].sample;
  AttentionParameters start = kTypicalAttention;
  if (first.pass != "forward") start.key_share = kBackwardKeyShare;
  if (grid.padded && first.counted() == AttentionPass::backward) {
    start.key_share = kMainPassKeyShare;
    start.pass_rows = kPassRows;
  }
  calibrate(start, calls, sms);
  double fewest_us = 1e300;
  for (const CountedSample& call : calls)
    for (const double seconds : call.sample->seconds) fewest_us = std::min(fewest_us, seconds * 1e6);
  if (largest_head_dim <= 128) start.block_us_per_128_above = 0;
  if (grid.padded) start.empty_tile_us = kTypicalEmptyTile;
  if (grid.apart == DocumentMask::square_causal) start.second_call_us = kTypicalSecondCall;
  // Published times include the host that feeds the device; this program's samples do not.
  start.host_us = kind == Provenance::measured ? 0 : 0.8 * fewest_us;
  start.launch_us = std::min(start.launch_us, 0.3 * fewest_us);
  return start;
}

}  // namespace

FittedTable fit_attention(std::span<const AttentionSample* const> samples, double sms, PackedGrid grid,
                          Provenance kind) {
  const std::vector<CountedSample> calls = counted(samples, grid.apart);
  CoveredAttention covered;
  for (const AttentionSample* sample : samples) covered.add(*sample);
  const AttentionParameters start = starting_point(calls, sms, grid, kind, covered.dims.high);
  FitProblem problem;
  problem.parameters = {{"launch_us", start.launch_us, 0.5},
                        {"tile_us", start.tile_us, 1},
                        {"tile_us_per_128", start.tile_us_per_128, 1},
                        {"block_us", start.block_us, 0.7},
                        {"block_us_per_128", start.block_us_per_128, 0.4},
                        {"block_us_above", start.block_us_per_128_above, 1},
                        {"pass_rows", start.pass_rows, 0.2},
                        {"empty_tile_us", start.empty_tile_us, 0.5},
                        {"diagonal_blocks", start.diagonal_blocks, 1},
                        {"imbalance_power", start.imbalance_power, 0.4},
                        {"memory_GBps", start.memory_GBps, 0.6},
                        {"key_share", start.key_share, 0.3},
                        {"host_us", start.host_us, 0.5},
                        {"second_call_us", start.second_call_us, 0.5}};
  SampleTimes times;
  for (const AttentionSample* sample : samples) {
    problem.shapes.push_back(sample->shape);
    problem.uncertainty.push_back(sample->uncertainty);
    times.add(sample->labels, sample->seconds[0]);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return calls[i].log_error(attention_of(p), sms);
  };
  const GroupFit fit = fit_group(problem);
  FittedTable table = fitted_table({"tiles-on-sms", attention_of(rounded_parameters(fit)), covered.ranges()},
                                   fit, times, kind);
  table.document_mask = grid.apart;
  return table;
}

FittedTable fit_blocked_attention(std::span<const AttentionSample* const> samples) {
  FitProblem problem;
  problem.parameters = {{"call_us", 0.5, kBlockedTrust},          {"pair_ns_per_128", 3, kBlockedTrust},
                        {"pair_ns", 0.6, kBlockedTrust},          {"row_block_ns", 5, kBlockedTrust},
                        {"query_ns_per_128", 50, kBlockedTrust},  {"key_ns_per_128", 50, kBlockedTrust},
                        {"cache_MB", 0.5, kBlockedTrust},         {"query_far_ns_per_128", 50, kBlockedTrust},
                        {"key_far_ns_per_128", 50, kBlockedTrust}};
  SampleTimes times;
  CoveredAttention covered;
  for (const AttentionSample* sample : samples) {
    problem.shapes.push_back(sample->shape);
    times.add(sample->labels, sample->seconds[0]);
    covered.add(*sample);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const AttentionSample& sample = *samples[i];
    return std::log(attention_seconds(blocked_attention_of(p), sample.heads, sample.blocked) /
                    sample.seconds[0]);
  };
  const GroupFit fit = fit_group(problem);
  return fitted_table({kBlockedLoops, blocked_attention_of(rounded_parameters(fit)), covered.ranges()}, fit,
                      times, Provenance::measured);
}

}  // namespace equipoise
