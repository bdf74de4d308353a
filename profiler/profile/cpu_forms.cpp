#include "profiler/profile/cpu_forms.h"

#include <nlohmann/json.hpp>

#include "profiler/profile/form_parameters.h"
#include "traces/json_object.h"

namespace equipoise {

constexpr double kCpuBytesPerElement = 4;  // fp32
constexpr double kCpuBytesPerMB = 1e6;

static double beyond_cache(double elements, double cache_MB) {
  const double ratio = elements * kCpuBytesPerElement / (cache_MB * kCpuBytesPerMB);
  const double square = ratio * ratio;
  return square * square / (1 + square * square);
}

constexpr FormParameter<BlockedAttentionParameters> kBlockedAttentionParameters[] = {
    {"call_us", &BlockedAttentionParameters::call_us},
    {"pair_ns_per_128", &BlockedAttentionParameters::pair_ns_per_128, kPositive},
    {"pair_ns", &BlockedAttentionParameters::pair_ns},
    {"row_block_ns", &BlockedAttentionParameters::row_block_ns},
    {"query_ns_per_128", &BlockedAttentionParameters::query_ns_per_128},
    {"key_ns_per_128", &BlockedAttentionParameters::key_ns_per_128},
    {"cache_MB", &BlockedAttentionParameters::cache_MB, kPositive},
    {"query_far_ns_per_128", &BlockedAttentionParameters::query_far_ns_per_128},
    {"key_far_ns_per_128", &BlockedAttentionParameters::key_far_ns_per_128},
};

constexpr FormParameter<PanelGemmParameters> kPanelParameters[] = {
    {"call_us", &PanelGemmParameters::call_us},
    {"gflops", &PanelGemmParameters::gflops, kPositive},
    {"left_ns", &PanelGemmParameters::left_ns},
    {"right_ns", &PanelGemmParameters::right_ns},
    {"product_ns", &PanelGemmParameters::product_ns},
    {"left_far_ns", &PanelGemmParameters::left_far_ns},
    {"right_far_ns", &PanelGemmParameters::right_far_ns},
    {"product_far_ns", &PanelGemmParameters::product_far_ns},
};

double attention_seconds(const BlockedAttentionParameters& fit, const AttentionHeads& heads,
                         const BlockedAttentionWork& work) {
  const double dims = heads.head_dim / 128.0;
  const double far = beyond_cache(2.0 * heads.head_dim *
                                      (static_cast<double>(work.queries) * heads.query_heads +
                                       static_cast<double>(work.keys) * heads.kv_heads),
                                  fit.cache_MB);
  const double query_ns = fit.query_ns_per_128 + far * fit.query_far_ns_per_128;
  const double key_ns = fit.key_ns_per_128 + far * fit.key_far_ns_per_128;
  const double of_head = static_cast<double>(work.pairs) * (fit.pair_ns + fit.pair_ns_per_128 * dims) +
                         static_cast<double>(work.row_blocks) * fit.row_block_ns +
                         static_cast<double>(work.queries) * query_ns * dims;
  const double of_kv_head = static_cast<double>(work.keys) * key_ns * dims;
  return 1e-6 * fit.call_us + 1e-9 * (heads.query_heads * of_head + heads.kv_heads * of_kv_head);
}

BlockedAttentionParameters blocked_attention_parameters(const nlohmann::json& table,
                                                        const std::string& where) {
  return parameters_of(kBlockedAttentionParameters, table, where);
}

nlohmann::json to_json(const BlockedAttentionParameters& fit) {
  return parameters_json(kBlockedAttentionParameters, fit);
}

double gemm_seconds(const PanelGemmParameters& fit, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  const double left = rows * depth;
  const double right = depth * columns;
  const double product = rows * columns;
  const double far = beyond_cache(left + right + product, fit.cache_MB);
  return 1e-6 * fit.call_us +
         1e-9 * (2 * rows * columns * depth / fit.gflops + (fit.left_ns + far * fit.left_far_ns) * left +
                 (fit.right_ns + far * fit.right_far_ns) * right +
                 (fit.product_ns + far * fit.product_far_ns) * product);
}

PanelGemmRates panel_gemm_rates(const nlohmann::json& table, const std::string& where) {
  const nlohmann::json& forms = object_field(table, "parameters", where);
  PanelGemmRates fit;
  const double cache_MB = positive_field(forms, "cache_MB", where + ".parameters");
  for (std::size_t f = 0; f < fit.size(); ++f) {
    const std::string name(kGemmRoleNames[f]);
    const std::string here = where + ".parameters." + name;
    const nlohmann::json& node = object_field(forms, name, where + ".parameters");
    read_parameters(kPanelParameters, node, here, fit[f]);
    fit[f].cache_MB = cache_MB;
  }
  return fit;
}

nlohmann::json to_json(const PanelGemmRates& fit) {
  nlohmann::json forms = {{"cache_MB", fit[0].cache_MB}};
  for (std::size_t f = 0; f < fit.size(); ++f)
    forms[std::string(kGemmRoleNames[f])] = parameters_json(kPanelParameters, fit[f]);
  return forms;
}

bool has_form(const nlohmann::json& table, const char* form) {
  const auto it = table.find("form");
  return it != table.end() && *it == form;
}

}  // namespace equipoise
