#include "profiler/fit/gemm_fit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace equipoise {

double gemm_call_seconds(const GemmForm& form, const GemmSample& sample) {
  double seconds = gemm_seconds(form, sample.m, sample.n, sample.k, sample.groups);
  if (sample.next_n > 0) seconds += gemm_seconds(form, sample.m, sample.next_n, sample.next_k, sample.groups);
  if (sample.moved_bytes > 0)
    seconds +=
        1e-6 * (form.parameters.around_us + 1e-6 * sample.moved_bytes * form.parameters.around_us_per_MB);
  return seconds;
}

namespace {

// Errors of products with at least so many rows (for experts, rows per expert) are stated separately.
constexpr std::int64_t kManyRows = 2048, kManyRowsOfExpert = 128;
constexpr double kFp8Rates = 1.77;  // the start: the best published FP8 rate over the best of BF16
constexpr double kTypicalGroupUs = 0.1, kTypicalAroundUs = 10, kTypicalAroundUsPerMB = 0.5;

// Proportions of a current GPU's library. Calibration scales them to the samples' device.
constexpr double kTypicalGemm[] = {4.4, 2900, 0.35, 800, 720, 450, 450, 200, 1.0, 0.14, 140, 1};
constexpr const char* kGemmNames[] = {"launch_us",      "memory_GBps",   "wave_blend",       "tflops_256x128",
                                      "tflops_128x128", "tflops_128x64", "tflops_64x64",     "tflops_64x16",
                                      "tile_us",        "power_loss",    "power_half_gflop", "split_us",
                                      "group_us",       "around_us",     "around_us_per_MB"};

GemmParameters library_gemm_of(std::span<const double> p, double input_bytes) {
  return {p[0],  p[1],  p[2], {p[3], p[4], p[5], p[6], p[7]}, p[8], p[9], p[10], p[11], input_bytes,
          p[12], p[13], p[14]};
}

// Where the search begins. The first sample tells the kind, which all samples of a fit share.
std::vector<double> calibrated_gemm(std::span<const GemmSample* const> samples, double sms,
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
  // A device within a factor of 1.5 counts as typical, and the prior should keep it so.
  if (scale > 1 / 1.5 && scale < 1.5) return start;
  for (const std::size_t rate : {1U, 3U, 4U, 5U, 6U, 7U, 10U}) start[rate] /= scale;
  start[8] *= scale;
  return start;
}

// The parameters of a CPU core start at values for a core with AVX-512 and may move by an order of magnitude.
constexpr double kPanelTrust = 1.5;

// The fitted vector is the cache size, then these many parameters for each role.
constexpr std::size_t kGemmParameters = 8;
PanelGemmParameters gemm_of(std::span<const double> p, std::size_t form) {
  const auto q = p.subspan(1 + form * kGemmParameters, kGemmParameters);
  return {q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7], p[0]};
}

PanelGemmRates rates_of(std::span<const double> p) {
  return {gemm_of(p, 0), gemm_of(p, 1), gemm_of(p, 2)};
}

// The layout of the operands ("form" of a sample) tells the role: NT forward, NN input gradient, TN weight
// gradient. A sample without a form is forward.
std::size_t role_of(const GemmSample& sample) {
  const std::string form = label(sample.labels, "form");
  return form.empty() || form == "NT" ? 0 : form == "NN" ? 1 : 2;
}

}  // namespace

FittedTable fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind) {
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
    problem.shapes.push_back(sample->shape.empty()
                                 ? std::vector{static_cast<double>(sample->n), static_cast<double>(sample->k)}
                                 : sample->shape);
    times.add(sample->labels, sample->seconds);
    // The weight gradient of an expert sums over its rows, which are the product's k.
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
  return fitted_table({"tiles-and-waves",
                       library_gemm_of(rounded_parameters(fit), input_bytes),
                       covered.ranges(),
                       {many, few}},
                      fit, times, kind);
}

FittedTable fit_panel_gemm(std::span<const GemmSample* const> samples) {
  FitProblem problem;
  problem.parameters = {{"cache_MB", 1, kPanelTrust}};
  for (const std::string_view form : kGemmRoleNames) {
    const std::string name = std::string(form) + " ";
    const std::pair<const char*, double> starts[kGemmParameters] = {
        {"call_us", 0.5},     {"gflops", 200},      {"left_ns", 0.05},     {"right_ns", 0.05},
        {"product_ns", 0.05}, {"left_far_ns", 0.1}, {"right_far_ns", 0.1}, {"product_far_ns", 0.1}};
    for (const auto& [parameter, start] : starts)
      problem.parameters.push_back({name + parameter, start, kPanelTrust});
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
  return fitted_table({kPackedPanels, rates_of(rounded_parameters(fit)), covered.ranges(), groups}, fit,
                      times, Provenance::measured);
}

}  // namespace equipoise
