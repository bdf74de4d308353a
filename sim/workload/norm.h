// The kinds of norms: what each moves, holds and trains. Cost, kept bytes and parameter counts read this
// table.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

#include "policies/base/index.h"

namespace equipoise {

enum class NormKind : std::uint8_t { rms };

// Elements of bf16 that a norm moves per element of its rows.
struct NormTraffic {
  double forward = 0, backward = 0;
};

struct Norm {
  NormKind kind{};
  std::string_view name;      // as a study spells it
  int parameters = 1;         // per channel: a scale, and possibly a shift
  NormTraffic own, fused;     // with our own kernel, and with a framework's fused one
  NormTraffic eager;          // with PyTorch's own kernels
  double kept_row_bytes = 0;  // statistics per row that a backward needs besides the input
};

// PyTorch's kernels of RMSNorm are those of torchtitan/models/norms.py. Forward: to fp32 (3), square (4),
// mean (2), product (4), to bf16 (3), weight (2). Backward, by PyTorch's derivatives: weight (2) and its
// gradient (4), to fp32 (3), products (4 + 6) and sum (2), mean (2), square (14), sum of both (6), to bf16
// (3).
inline constexpr Norm kNorms[] = {
    {.kind = NormKind::rms, .name = "rms", .own = {2, 3}, .fused = {2, 4}, .eager = {18, 46}},
};

constexpr const Norm& norm_of(NormKind kind) {
  return kNorms[at(kind)];
}

}  // namespace equipoise
