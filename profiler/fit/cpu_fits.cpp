// Fits the forms of a CPU core (profiler/profile/cpu_forms.h) to measured samples.
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/fit/table_fits.h"
#include "profiler/profile/cpu_forms.h"

namespace equipoise {
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
  const auto it = sample.labels.find("form");
  if (it == sample.labels.end() || it->second == "NT") return 0;
  return it->second == "NN" ? 1 : 2;
}

}  // namespace

nlohmann::json fit_blocked_attention(std::span<const AttentionSample* const> samples) {
  FitProblem problem;
  problem.parameters = {
      {"call_us", 0.5, kTrust},    {"pair_ns_per_128", 3, kTrust},       {"pair_ns", 0.6, kTrust},
      {"row_block_ns", 5, kTrust}, {"query_ns_per_128", 50, kTrust},     {"key_ns_per_128", 50, kTrust},
      {"cache_MB", 0.5, kTrust},   {"query_far_ns_per_128", 50, kTrust}, {"key_far_ns_per_128", 50, kTrust}};
  SampleTimes times;
  Covered keys;
  Covered queries;
  Covered dims;
  Covered heads;
  for (const AttentionSample* sample : samples) {
    problem.shapes.push_back(sample->shape);
    times.add(sample->labels, sample->seconds[0]);
    keys.add(static_cast<double>(sample->most_keys));
    queries.add(static_cast<double>(sample->least_queries));
    dims.add(sample->heads.head_dim);
    heads.add(sample->heads.query_heads);
  }
  problem.log_error = [&](std::span<const double> p, std::size_t i) {
    const AttentionSample& sample = *samples[i];
    return std::log(attention_seconds(blocked_attention_of(p), sample.heads, sample.blocked) /
                    sample.seconds[0]);
  };
  const GroupFit fit = fit_group(problem);
  return table_json(
      {kBlockedLoops, to_json(blocked_attention_of(kept(fit))), attention_ranges(keys, queries, dims, heads)},
      fit, times, Provenance::measured);
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
  return table_json({kPackedPanels, to_json(rates_of(kept(fit))), gemm_ranges(covered), groups}, fit, times,
                    Provenance::measured);
}

}  // namespace equipoise
