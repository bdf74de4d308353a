// The price of a dense FFN of any width: a dense layer's, or that of the shared experts.
#pragma once

#include <cstdint>

#include "sim/cost/cast_costs.h"
#include "sim/cost/linear_costs.h"
#include "sim/cost/row_op_costs.h"

namespace equipoise {

class FfnCosts {
 public:
  FfnCosts(const CostBasis& basis, const RowOpCosts& rows, const CastCosts& casts, const LinearCosts& linear)
      : basis_(basis), rows_(rows), casts_(casts), linear_(linear) {}

  void push(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  // Its halves: gate and up with the activation, and down.
  void push_up(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  void push_down(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;

 private:
  const CostBasis& basis_;
  const RowOpCosts& rows_;
  const CastCosts& casts_;
  const LinearCosts& linear_;
};

}  // namespace equipoise
