// Every op again, in float64, written from its definition: no tiles, no tricks, quadratic memory where that
// is the definition. The backends are checked against these; nothing is timed here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace equipoise::kernels::reference {

using Values = std::vector<double>;

struct Attention {
  Values out;      // (query rows, query heads, head dim); rows outside every piece stay 0
  Values log_sum;  // (query rows, query heads)
};
Attention attention(const AttentionShape& shape, std::span<const Piece> pieces, const Values& query,
                    const Values& key, const Values& value);

struct AttentionGradient {
  Values query;
  Values key;
  Values value;
};
// Differentiates the definition: it recomputes the forward pass itself.
AttentionGradient attention_gradient(const AttentionShape& shape, std::span<const Piece> pieces,
                                     const Values& query, const Values& key, const Values& value,
                                     const Values& out_gradient);

Values gemm(const GemmShape& shape, const Values& a, const Values& b, const Values& c_before);

Values rms_norm(const Rows& shape, double epsilon, const Values& x, const Values& weight);
struct RmsNormGradient {
  Values x;
  Values weight;
};
RmsNormGradient rms_norm_gradient(const Rows& shape, double epsilon, const Values& x, const Values& weight,
                                  const Values& out_gradient);

Values rope(const RopeShape& shape, double base, std::span<const std::int32_t> positions, bool inverse,
            const Values& x);

Values swiglu(const Rows& shape, const Values& gate_up);
Values swiglu_gradient(const Rows& shape, const Values& gate_up, const Values& out_gradient);

struct AdamState {
  Values master;
  Values mean;
  Values square;
};
AdamState adam_step(const AdamStep& step, const Values& gradient, AdamState before);

struct CrossEntropy {
  Values log_sum;
  Values target_logit;
};
CrossEntropy cross_entropy(const Rows& shape, std::int64_t first_token, const Values& logits,
                           std::span<const std::int32_t> targets);
Values cross_entropy_gradient(const Rows& shape, std::int64_t first_token, const Values& logits,
                              std::span<const std::int32_t> targets, const Values& log_sum,
                              const Values& row_weight);

}  // namespace equipoise::kernels::reference
