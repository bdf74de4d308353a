// The price of casts to FP8 before the products of linear layers, and of copying gathered weights.
//
// Transformer Engine casts an operand from bf16 and writes it in both orders, for this product and for the
// one of the other pass. Norms write FP8 themselves, and weights are cast once per step. torchao's
// Float8Linear has one scale per tensor from its largest value. Every operand is cast by a kernel that reads
// bf16 and writes both orders, and reads one of them again, as torch.compile has it. Finding the largest
// value takes another read if no row op has made the tensor. torchao's own roofline model counts so
// (torchao/float8/roofline_utils.py at eab345c). Q, K and V share a cast, as gate and up do. Weights are cast
// in every forward. FSDP2 copies what it has gathered out of its buffer (foreach_all_gather_copy_out).
#pragma once

#include <cstdint>

#include "sim/cost/kernel_costs.h"

namespace equipoise {

struct CastCosts {
  const CostBasis& basis;
  const KernelCosts& kernels;

  // Casts an operand of products with these weights. `by_row_op` says that a row op has made it.
  void push_quantize(WeightKind weights, std::int64_t rows, std::int64_t width, OpList& ops, RangeUse& use,
                     bool by_row_op = true) const;
  // Casts a norm's output before it is gathered.
  void push_input_cast(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_weight_copies(LayerKind kind, bool backward, OpList& ops, RangeUse& use) const;
  // Rows that are cast of a gradient that TP gathers: torchao casts it before the gather, others after it.
  [[nodiscard]] std::int64_t cast_rows(std::int64_t tokens) const {
    return basis.casts_by_torchao() ? basis.own_rows(tokens) : tokens;
  }

 private:
  void push_cast(double elements, bool made_by_row_op, OpList& ops, RangeUse& use) const;
};

}  // namespace equipoise
