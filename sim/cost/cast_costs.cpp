#include "sim/cost/cast_costs.h"

#include "policies/base/index.h"

namespace equipoise {

namespace {

constexpr double kCast = 2 + 2 + 1;   // bytes of an element: read in bf16, written twice, read in FP8
constexpr double kLargest = 2;        // read for its largest value
constexpr double kTranspose = 1 + 1;  // of FP8 that was gathered in one order
constexpr double kCopyOut = 2 + 2;    // of a weight that FSDP has gathered

}  // namespace

// FP8: an operand of a product is cast from bf16 and written in both orders, for this product and for the one
// of the other pass (Transformer Engine's cast and transpose); frozen weights have no use for the second.
// Norms write FP8 themselves; weights are cast once a step.
void CastCosts::push_quantize(WeightKind weights, std::int64_t rows, std::int64_t width, OpList& ops,
                              RangeUse& use, bool by_row_op) const {
  const double bytes =
      2 + 1 + (basis_.model.training.trains(weights) ? 1 : 0);  // of an element: read, written
  if (basis_.layout.precision != Precision::fp8) return;
  if (basis_.casts_by_torchao()) return push_cast(as_double(rows) * as_double(width), by_row_op, ops, use);
  ops.push(
      kernels_.moves(OpName::quantize, Elementwise::copy, bytes * as_double(rows) * as_double(width), use));
}

void CastCosts::push_cast(double elements, bool made_by_row_op, OpList& ops, RangeUse& use) const {
  ops.push(kernels_.moves(OpName::quantize, Elementwise::copy,
                          (kCast + (made_by_row_op ? 0 : kLargest)) * elements, use));
}

// Of a norm's output, before it is gathered.
void CastCosts::push_input_cast(std::int64_t n, OpList& ops, RangeUse& use) const {
  if (basis_.casts_by_torchao())
    push_cast(as_double(basis_.own_rows(n)) * as_double(basis_.model.hidden), true, ops, use);
}

// Weights of a dense layer. A forward makes both orders, unless FSDP has gathered them in FP8: then a
// backward makes the other one. Recomputation by operator keeps the largest values, and casts again.
void CastCosts::push_weight_copies(bool backward, OpList& ops, RangeUse& use) const {
  if (!basis_.torch_layers() || basis_.model.mla || basis_.model.moe) return;
  const double attention =
      as_double(basis_.model.heads) * (basis_.model.head_dim + basis_.model.value_dim()) +
      2 * as_double(basis_.model.kv_heads) * basis_.model.head_dim;
  const double ffn = (basis_.model.gated_ffn ? 3 : 2) * as_double(basis_.model.ffn);
  const double weights = as_double(basis_.model.hidden) * (attention + ffn) / basis_.layout.tensor;
  const double of_gathered = basis_.gathers_fp8_parameters() ? kCopyOut / 2 : kCopyOut;
  if (basis_.layout.zero == 3) {
    ops.push(kernels_.moves(OpName::permute, Elementwise::copy, of_gathered * weights, use));
    if (!backward) ops.mark_once(ops.size() - 1);  // a recomputed forward finds the backward's
  }
  if (!basis_.casts_by_torchao()) return;
  if (basis_.gathers_fp8_parameters()) {
    if (backward) ops.push(kernels_.moves(OpName::quantize, Elementwise::copy, kTranspose * weights, use));
  } else if (!backward || basis_.layout.repeats(RecomputeModule::per_op)) {
    push_cast(weights, backward, ops, use);
  }
}

}  // namespace equipoise
