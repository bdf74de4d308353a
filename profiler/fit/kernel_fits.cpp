// Fits of what one device computes: attention, matrix products and elementwise ops, on a GPU and on a CPU
// core.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "profiler/fit/table_fits.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/dense_kernels.h"

namespace equipoise {
namespace {

// Backward, by counting: K, V, dK, dV against Q, O, dO, dQ and dQ's fp32 sums (zeroed, added to, converted).
constexpr double kBackwardKeyShare = 0.4;
// The same where the main kernel is apart from the passes around it: K, V, dK, dV against Q, dO; and in the
// passes O and dO, and dQ, in fp32 set to 0 and read, and written.
constexpr double kMainPassKeyShare = 2;
constexpr double kPassRows = 3.5;  // counted, so held

// Proportions of a fused kernel on a current GPU; the first calibration moves all times to the samples'
// device.
constexpr double kTypicalSecondCall = 40;
constexpr double kTypicalEmptyTile = 0.1;  // a tile that reads its piece's length and leaves
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

}  // namespace

nlohmann::json fit_attention(std::span<const AttentionSample* const> samples, double sms, PackedGrid grid,
                             Provenance kind) {
  const DocumentMask apart = grid.apart;
  const std::vector<CountedSample> calls = counted(samples, apart);
  AttentionParameters start = kTypicalAttention;
  if (samples[0]->pass != "forward") start.key_share = kBackwardKeyShare;
  if (grid.padded && samples[0]->counted() == AttentionPass::backward) {
    start.key_share = kMainPassKeyShare;
    start.pass_rows = kPassRows;
  }
  calibrate(start, calls, sms);
  double fewest_us = 1e300;
  CoveredAttention covered;
  for (const AttentionSample* sample : samples) {
    for (const double seconds : sample->seconds) fewest_us = std::min(fewest_us, seconds * 1e6);
    covered.add(*sample);
  }
  if (covered.dims.high <= 128) start.block_us_per_128_above = 0;
  if (grid.padded) start.empty_tile_us = kTypicalEmptyTile;
  if (apart == DocumentMask::square_causal) start.second_call_us = kTypicalSecondCall;
  // Our own profiler times the device, not the host that feeds it.
  start.host_us = kind == Provenance::measured ? 0 : 0.8 * fewest_us;
  start.launch_us = std::min(start.launch_us, 0.3 * fewest_us);

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
  nlohmann::json table =
      table_json({"tiles-on-sms", to_json(attention_of(kept(fit))), covered.ranges()}, fit, times, kind);
  if (apart != DocumentMask::varlen) table["document_mask"] = kDocumentMaskNames[at(apart)];
  return table;
}

// Fits the tiles-and-waves form to matrix products; whole (n, k) shapes are held out.

// Where errors are reported apart: rows of a product, and of one expert's.
constexpr std::int64_t kManyRows = 2048, kManyRowsOfExpert = 128;
constexpr double kFp8Rates = 1.77;  // best published FP8 over BF16 products: where the search begins
constexpr double kTypicalGroupUs = 0.1, kTypicalAroundUs = 10, kTypicalAroundUsPerMB = 0.5;

// Proportions of a current GPU's library; calibration moves all to the samples' device.
constexpr double kTypicalGemm[] = {4.4, 2900, 0.35, 800, 720, 450, 450, 200, 1.0, 0.14, 140, 1};
constexpr const char* kGemmNames[] = {"launch_us",      "memory_GBps",   "wave_blend",       "tflops_256x128",
                                      "tflops_128x128", "tflops_128x64", "tflops_64x64",     "tflops_64x16",
                                      "tile_us",        "power_loss",    "power_half_gflop", "split_us",
                                      "group_us",       "around_us",     "around_us_per_MB"};

static GemmParameters library_gemm_of(std::span<const double> p, double input_bytes) {
  return {p[0],  p[1],  p[2], {p[3], p[4], p[5], p[6], p[7]}, p[8], p[9], p[10], p[11], input_bytes, p[12],
          p[13], p[14]};
}

// Samples of a fit are of one kind: the first says which.
static std::vector<double> calibrated_gemm(std::span<const GemmSample* const> samples, double sms,
                                           double input_bytes) {
  std::vector<double> start(std::begin(kTypicalGemm), std::end(kTypicalGemm));
  const GemmSample& first = *samples.front();
  start.push_back(first.groups > 1 || first.next_n > 0 ? kTypicalGroupUs : 0);
  start.push_back(first.moved_bytes > 0 ? kTypicalAroundUs : 0);
  start.push_back(first.moved_bytes > 0 ? kTypicalAroundUsPerMB : 0);
  constexpr std::size_t kFirstRate = 3, kLastRate = 7;
  if (input_bytes < 2)
    for (std::size_t rate = kFirstRate; rate <= kLastRate; ++rate) start[rate] *= kFp8Rates;
  std::vector<double> errors;
  const GemmForm form(library_gemm_of(start, input_bytes), sms);
  for (const GemmSample* sample : samples)
    errors.push_back(std::log(gemm_call_seconds(form, *sample) / sample->seconds));
  std::sort(errors.begin(), errors.end());
  const double scale = std::exp(-errors[errors.size() / 2]);
  // Within a factor of 1.5 the typical device is this one, and the prior should hold it there.
  if (scale > 1 / 1.5 && scale < 1.5) return start;
  for (const std::size_t rate : {1U, 3U, 4U, 5U, 6U, 7U, 10U}) start[rate] /= scale;
  start[8] *= scale;
  return start;
}

double gemm_call_seconds(const GemmForm& form, const GemmSample& sample) {
  double seconds = gemm_seconds(form, sample.m, sample.n, sample.k, sample.groups);
  if (sample.next_n > 0)
    seconds += gemm_seconds(form, sample.m, sample.next_n, sample.next_k, sample.groups);
  if (sample.moved_bytes > 0)
    seconds += 1e-6 * (form.parameters.around_us +
                       1e-6 * sample.moved_bytes * form.parameters.around_us_per_MB);
  return seconds;
}

nlohmann::json fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind) {
  FitProblem problem;
  problem.options.prior_weight = 0.1;
  const bool of_experts = samples.front()->groups > 1 || samples.front()->next_n > 0;
  const std::int64_t parted = of_experts ? kManyRowsOfExpert : kManyRows;
  const std::string rows = of_experts ? "rows of an expert" : "m";
  const double input_bytes = label(samples.front()->labels, "dtype").starts_with("fp8") ? 1 : 2;
  const std::vector<double> start = calibrated_gemm(samples, sms, input_bytes);
  for (std::size_t i = 0; i < start.size(); ++i) problem.parameters.push_back({kGemmNames[i], start[i], 1});
  SampleTimes times;
  ErrorGroup many{rows + " >= " + std::to_string(parted), {}};
  ErrorGroup few{rows + " < " + std::to_string(parted), {}};
  CoveredProducts covered;
  for (const GemmSample* sample : samples) {
    problem.shapes.push_back(sample->shape.empty() ? std::vector{static_cast<double>(sample->n),
                                                                 static_cast<double>(sample->k)}
                                                   : sample->shape);
    times.add(sample->labels, sample->seconds);
    // Of a weight gradient an expert's rows are summed over.
    const bool summed = of_experts && label(sample->labels, "form") == "TN";
    many.holds.push_back((summed ? sample->k : sample->m) >= parted);
    few.holds.push_back(!many.holds.back());
    covered.add(*sample);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    return std::log(gemm_call_seconds(GemmForm(library_gemm_of(p, input_bytes), sms), *samples[i]) /
                    samples[i]->seconds);
  };
  const GroupFit fit = fit_group(problem);
  return table_json({"tiles-and-waves", to_json(library_gemm_of(kept(fit), input_bytes)), covered.ranges(), {many, few}},
                    fit, times, kind);
}

// Fits a launch, a bandwidth in the cache and one beyond it to one elementwise op.

namespace {

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
  return table_json({"launch-and-bandwidth", to_json(rounded), elementwise_ranges(bytes)}, fit, times, kind);
}

// Fits the forms of a CPU core (profiler/profile/cpu_forms.h) to measured samples.

namespace {

// Starting points are of a core with AVX-512; every parameter may move by an order of magnitude.
constexpr double kTrust = 1.5;

BlockedAttentionParameters blocked_attention_of(std::span<const double> p) {
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]};
}
// The cache first, then the parameters of each role.
constexpr std::size_t kGemmParameters = 8;
PanelGemmParameters gemm_of(std::span<const double> p, std::size_t form) {
  const auto q = p.subspan(1 + form * kGemmParameters, kGemmParameters);
  return {q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7], p[0]};
}

PanelGemmRates rates_of(std::span<const double> p) {
  return {gemm_of(p, 0), gemm_of(p, 1), gemm_of(p, 2)};
}

// "NT", "NN" and "TN" are how the operands of the three lie (the sample's label; forward where there is
// none).
std::size_t role_of(const GemmSample& sample) {
  const std::string form = label(sample.labels, "form");
  return form.empty() || form == "NT" ? 0 : form == "NN" ? 1 : 2;
}

}  // namespace

nlohmann::json fit_blocked_attention(std::span<const AttentionSample* const> samples) {
  FitProblem problem;
  problem.parameters = {
      {"call_us", 0.5, kTrust},    {"pair_ns_per_128", 3, kTrust},       {"pair_ns", 0.6, kTrust},
      {"row_block_ns", 5, kTrust}, {"query_ns_per_128", 50, kTrust},     {"key_ns_per_128", 50, kTrust},
      {"cache_MB", 0.5, kTrust},   {"query_far_ns_per_128", 50, kTrust}, {"key_far_ns_per_128", 50, kTrust}};
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
  return table_json({kBlockedLoops, to_json(blocked_attention_of(kept(fit))), covered.ranges()}, fit, times,
                    Provenance::measured);
}

nlohmann::json fit_panel_gemm(std::span<const GemmSample* const> samples) {
  FitProblem problem;
  problem.parameters = {{"cache_MB", 1, kTrust}};
  for (const std::string_view form : kGemmRoleNames) {
    const std::string name = std::string(form) + " ";
    const std::pair<const char*, double> starts[kGemmParameters] = {
        {"call_us", 0.5},     {"gflops", 200},      {"left_ns", 0.05},     {"right_ns", 0.05},
        {"product_ns", 0.05}, {"left_far_ns", 0.1}, {"right_far_ns", 0.1}, {"product_far_ns", 0.1}};
    for (const auto& [parameter, start] : starts)
      problem.parameters.push_back({name + parameter, start, kTrust});
  }
  std::vector<ErrorGroup> groups{{"all", {}}};
  for (const std::string_view form : kGemmRoleNames) groups.push_back({std::string(form), {}});
  SampleTimes times;
  CoveredProducts covered;
  for (const GemmSample* sample : samples) {
    problem.shapes.push_back({static_cast<double>(sample->n), static_cast<double>(sample->k)});
    times.add(sample->labels, sample->seconds);
    groups[0].holds.push_back(true);
    for (std::size_t f = 0; f < kGemmRoleNames.size(); ++f)
      groups[f + 1].holds.push_back(role_of(*sample) == f);
    covered.add(*sample);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const GemmSample& sample = *samples[i];
    return std::log(gemm_seconds(gemm_of(p, role_of(sample)), sample.m, sample.n, sample.k) / sample.seconds);
  };
  const GroupFit fit = fit_group(problem);
  return table_json({kPackedPanels, to_json(rates_of(kept(fit))), covered.ranges(), groups}, fit, times,
                    Provenance::measured);
}

}  // namespace equipoise
