#include "profiler/profile/attention_form.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

constexpr double kBytesPerElement = 2;  // bf16

// (a^p + b^p)^(1/p) with the larger taken out, so that neither power overflows.
double norm_of(double a, double b, double p) {
  const double high = std::max(a, b);
  return high > 0 ? high * std::pow(1 + std::pow(std::min(a, b) / high, p), 1 / p) : 0;
}

constexpr FormParameter<AttentionParameters> kAttentionParameters[] = {
    {"launch_us", &AttentionParameters::launch_us},
    {"tile_us", &AttentionParameters::tile_us},
    {"tile_us_per_128", &AttentionParameters::tile_us_per_128},
    {"block_us", &AttentionParameters::block_us},
    {"block_us_per_128", &AttentionParameters::block_us_per_128, kPositive},
    {"block_us_per_128_above", &AttentionParameters::block_us_per_128_above},
    {"row_share", &AttentionParameters::row_share},
    {"diagonal_blocks", &AttentionParameters::diagonal_blocks},
    {"imbalance_power", &AttentionParameters::imbalance_power, kPositive},
    {"memory_GBps", &AttentionParameters::memory_GBps, kPositive},
    {"key_share", &AttentionParameters::key_share},
    {"host_us", &AttentionParameters::host_us},
};

}  // namespace

double attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                         const AttentionWork& work) {
  const double dims = heads.head_dim / 128.0;
  const double tile = fit.tile_us + fit.tile_us_per_128 * dims;
  const double block =
      fit.block_us + fit.block_us_per_128 * dims + fit.block_us_per_128_above * std::max(0.0, dims - 1);
  const double query_heads = heads.query_heads;
  constexpr double kBlockShare = static_cast<double>(kAttentionBlock) / kAttentionTile;
  const double masked = static_cast<double>(work.masked_tiles) * fit.diagonal_blocks;
  const double blocks = static_cast<double>(work.blocks) -
                        std::min(1.0, fit.row_share) * static_cast<double>(work.idle_rows) / kAttentionTile;
  const double total =
      query_heads * (static_cast<double>(work.tiles) * tile + (blocks * kBlockShare + masked) * block);
  const double diagonal = work.masked_tiles > 0 ? fit.diagonal_blocks : 0;
  const double spread = total / sms;
  const double longest =
      (tile + (static_cast<double>(work.longest) * kBlockShare + diagonal) * block) * (1 - 1 / sms);
  const double compute_us = norm_of(spread, longest, fit.imbalance_power);
  // Queries read and output written, keys and values read.
  const double bytes = 2 * kBytesPerElement * heads.head_dim *
                       (static_cast<double>(work.query_tokens) * query_heads +
                        static_cast<double>(work.key_tokens) * heads.kv_heads * fit.key_share);
  const double memory_us = bytes * 1e-3 / fit.memory_GBps;
  return 1e-6 * (fit.launch_us + std::sqrt(compute_us * compute_us + memory_us * memory_us));
}

LeastAttention least_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads,
                                       double sms) {
  const double dims = heads.head_dim / 128.0;
  const double tile = fit.tile_us + fit.tile_us_per_128 * dims;
  const double block =
      fit.block_us + fit.block_us_per_128 * dims + fit.block_us_per_128_above * std::max(0.0, dims - 1);
  const double of_sms = 1e-6 * heads.query_heads / sms / kAttentionTile;
  return {of_sms * (tile + fit.diagonal_blocks * block), of_sms * block / kAttentionTile};
}

double observed_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                                  const AttentionWork& work) {
  const double kernel = attention_seconds(fit, heads, sms, work);
  const double host = 1e-6 * fit.host_us;
  if (host <= 0 || kernel <= 0) return kernel;
  // A corner rounded by the spread of the host's time.
  constexpr double kSharpness = 8;
  return norm_of(kernel, host, kSharpness);
}

AttentionParameters attention_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kAttentionParameters, table, where);
}

DocumentMask document_mask(const nlohmann::json& table, const std::string& where) {
  if (!table.contains("document_mask")) return DocumentMask::varlen;
  return static_cast<DocumentMask>(
      name_field(table, "document_mask", kDocumentMaskNames, where, joined(kDocumentMaskNames)));
}

nlohmann::json to_json(const AttentionParameters& fit) {
  return parameters_json(kAttentionParameters, fit);
}

}  // namespace equipoise
