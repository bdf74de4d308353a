#include "sim/framework/framework_options.h"

#include <algorithm>
#include <bit>

namespace equipoise {

std::int64_t tokens_with_logits(LossKind loss, std::int64_t tokens, std::int64_t vocab, std::int64_t hidden) {
  if (loss != LossKind::chunked || tokens <= 0) return tokens;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto chunk = std::bit_ceil(static_cast<std::uint64_t>(up(tokens, up(vocab, hidden))));
  return std::min(tokens, static_cast<std::int64_t>(chunk));
}

}  // namespace equipoise
