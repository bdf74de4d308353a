// The price of a dense FFN of any width: a dense layer's, or that of the shared experts.
#pragma once

#include <cstdint>

#include "sim/cost/cast_costs.h"
#include "sim/cost/linear_costs.h"
#include "sim/cost/row_op_costs.h"

namespace equipoise {

struct FfnCosts {
  const CostBasis& basis;
  const RowOpCosts& rows;
  const CastCosts& casts;
  const LinearCosts& linear;

  void push(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  // Its two halves: gate and up with the activation, and down.
  void push_up(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  void push_down(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
};

}  // namespace equipoise
