// The price of kernels on rows: norm, rotary embedding, and an FFN's activation.
#pragma once

#include <cstdint>

#include "sim/cost/kernel_costs.h"

namespace equipoise {

struct RowOpCosts {
  const CostBasis& basis;
  const KernelCosts& kernels;

  [[nodiscard]] Op norm(double row_bytes, ElementwisePass pass, RangeUse& use) const;
  // Rotary embedding of a layer's Q and K: one kernel, or PyTorch's own kernels, which Megatron-core runs
  // document by document.
  [[nodiscard]] Op rotary(std::int64_t tokens, std::int64_t documents, ElementwisePass pass,
                          RangeUse& use) const;
  // The activation of a dense or an expert's FFN whose product has `f` columns on this rank.
  [[nodiscard]] Op activation(std::int64_t rows, std::int64_t f, ElementwisePass pass, RangeUse& use) const;
};

}  // namespace equipoise
