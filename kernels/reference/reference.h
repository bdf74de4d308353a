// Attention and GEMM again, in float64, written from their definitions: no tiles, no tricks, quadratic memory
// where that is the definition. The backends are checked against these; nothing is timed here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace equipoise::kernels::reference {

using Values = std::vector<double>;

inline std::size_t index(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}

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

}  // namespace equipoise::kernels::reference
