// The price of what a layout's first and last stage run besides layers: the embedding, the head with its
// loss, and the input of each module of multi-token prediction.
#pragma once

#include <cstdint>

#include "sim/cost/cast_costs.h"
#include "sim/cost/linear_costs.h"
#include "sim/cost/row_op_costs.h"

namespace equipoise {

struct EmbeddingAndHeadCosts {
  const CostBasis& basis;
  const KernelCosts& kernels;
  const RowOpCosts& rows;
  const CastCosts& casts;
  const LinearCosts& linear;

  void embedding(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  // Multi-token prediction adds one pass through the head per module, each with its embedding and projection.
  // As in Megatron-LM, all of them follow the layers.
  void head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const;

 private:
  void push_embedding(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void push_head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_prediction_input(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
};

}  // namespace equipoise
