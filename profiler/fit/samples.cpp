#include "profiler/fit/samples.h"

namespace equipoise {
namespace {

// The query-key pairs that remain under the mask, which is how attention work is usually counted.
double mask_pairs(AttentionMask mask, std::int64_t queries, std::int64_t keys) {
  const auto q = static_cast<double>(queries);
  const auto k = static_cast<double>(keys);
  if (!mask.causal) return q * k;
  if (mask.window > 0 && keys > mask.window) {
    const auto w = static_cast<double>(mask.window);
    return w * (w + 1) / 2 + (q - w) * w;
  }
  return q * (k - q) + q * (q + 1) / 2;
}

// Matrix products over the pairs: 2 forward, 5 backward.
double flops_per_pair(const std::string& pass, double head_dim) {
  return head_dim * (pass == "forward" ? 4.0 : pass == "backward" ? 10.0 : 14.0);
}

}  // namespace

double attention_flops(const AttentionSample& sample, const std::vector<QueryKeys>& packing) {
  double pairs = 0;
  for (const QueryKeys& one : packing) pairs += mask_pairs(sample.mask, one.queries, one.keys);
  return pairs * sample.heads.query_heads * flops_per_pair(sample.pass, sample.heads.head_dim);
}

std::string gemm_table_of(const Labels& labels) {
  const std::string table = label(labels, "dtype") == "fp8" ? "fp8" : "bf16",
                    kernel = label(labels, "kernel");
  return kernel.empty() ? table : table + "-" + kernel;
}

}  // namespace equipoise
