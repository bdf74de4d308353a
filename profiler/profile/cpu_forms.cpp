#include "profiler/profile/cpu_forms.h"

#include <nlohmann/json.hpp>

#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

constexpr double kBytesPerElement = 4;  // fp32
constexpr double kBytesPerMB = 1e6;

double beyond_cache(double elements, double cache_MB) {
  const double ratio = elements * kBytesPerElement / (cache_MB * kBytesPerMB);
  const double square = ratio * ratio;
  return square * square / (1 + square * square);
}

}  // namespace

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
  const std::string here = where + ".parameters";
  const nlohmann::json& node = object_field(table, "parameters", where);
  BlockedAttentionParameters fit;
  fit.call_us = non_negative_field(node, "call_us", here);
  fit.pair_ns_per_128 = positive_field(node, "pair_ns_per_128", here);
  fit.pair_ns = non_negative_field(node, "pair_ns", here);
  fit.row_block_ns = non_negative_field(node, "row_block_ns", here);
  fit.query_ns_per_128 = non_negative_field(node, "query_ns_per_128", here);
  fit.key_ns_per_128 = non_negative_field(node, "key_ns_per_128", here);
  fit.cache_MB = positive_field(node, "cache_MB", here);
  fit.query_far_ns_per_128 = non_negative_field(node, "query_far_ns_per_128", here);
  fit.key_far_ns_per_128 = non_negative_field(node, "key_far_ns_per_128", here);
  return fit;
}

nlohmann::json to_json(const BlockedAttentionParameters& fit) {
  return {{"call_us", fit.call_us},
          {"pair_ns_per_128", fit.pair_ns_per_128},
          {"pair_ns", fit.pair_ns},
          {"row_block_ns", fit.row_block_ns},
          {"query_ns_per_128", fit.query_ns_per_128},
          {"key_ns_per_128", fit.key_ns_per_128},
          {"cache_MB", fit.cache_MB},
          {"query_far_ns_per_128", fit.query_far_ns_per_128},
          {"key_far_ns_per_128", fit.key_far_ns_per_128}};
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
    const std::string here = where + ".parameters." + kGemmRoleNames[f];
    const nlohmann::json& node = object_field(forms, kGemmRoleNames[f], where + ".parameters");
    fit[f].call_us = non_negative_field(node, "call_us", here);
    fit[f].gflops = positive_field(node, "gflops", here);
    fit[f].left_ns = non_negative_field(node, "left_ns", here);
    fit[f].right_ns = non_negative_field(node, "right_ns", here);
    fit[f].product_ns = non_negative_field(node, "product_ns", here);
    fit[f].left_far_ns = non_negative_field(node, "left_far_ns", here);
    fit[f].right_far_ns = non_negative_field(node, "right_far_ns", here);
    fit[f].product_far_ns = non_negative_field(node, "product_far_ns", here);
    fit[f].cache_MB = cache_MB;
  }
  return fit;
}

nlohmann::json to_json(const PanelGemmRates& fit) {
  nlohmann::json forms = {{"cache_MB", fit[0].cache_MB}};
  for (std::size_t f = 0; f < fit.size(); ++f) {
    forms[kGemmRoleNames[f]] = {
        {"call_us", fit[f].call_us},           {"gflops", fit[f].gflops},
        {"left_ns", fit[f].left_ns},           {"right_ns", fit[f].right_ns},
        {"product_ns", fit[f].product_ns},     {"left_far_ns", fit[f].left_far_ns},
        {"right_far_ns", fit[f].right_far_ns}, {"product_far_ns", fit[f].product_far_ns}};
  }
  return forms;
}

bool has_form(const nlohmann::json& table, const char* form) {
  const auto it = table.find("form");
  return it != table.end() && *it == form;
}

}  // namespace equipoise
