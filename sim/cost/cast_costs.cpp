#include "sim/cost/cast_costs.h"

#include "policies/base/index.h"

namespace equipoise {

namespace {

constexpr double kCast = 2 + 2 + 1;   // bytes per element: read in bf16, written twice, read in FP8
constexpr double kLargest = 2;        // bytes per element: read to find the largest value
constexpr double kTranspose = 1 + 1;  // for FP8 that was gathered in one order
constexpr double kCopyOut = 2 + 2;    // for a weight that FSDP has gathered

}  // namespace

// With FP8 an operand of a product is cast from bf16 and written in both orders: for this product and for the
// one of the other pass (Transformer Engine's cast and transpose). Frozen weights do not need the second.
// Norms write FP8 themselves; weights are cast once per step.
void CastCosts::push_quantize(WeightKind weights, std::int64_t rows, std::int64_t width, OpList& ops,
                              RangeUse& use, bool by_row_op) const {
  const double bytes = 2 + 1 + (basis.model.training.trains(weights) ? 1 : 0);  // per element: read, written
  if (basis.layout.precision != Precision::fp8) return;
  if (basis.casts_by_torchao()) return push_cast(as_double(rows) * as_double(width), by_row_op, ops, use);
  ops.push(
      kernels.moves(OpName::quantize, Elementwise::copy, bytes * as_double(rows) * as_double(width), use));
}

void CastCosts::push_cast(double elements, bool made_by_row_op, OpList& ops, RangeUse& use) const {
  ops.push(kernels.moves(OpName::quantize, Elementwise::copy,
                         (kCast + (made_by_row_op ? 0 : kLargest)) * elements, use));
}

// A norm's output is cast before it is gathered.
void CastCosts::push_input_cast(std::int64_t n, OpList& ops, RangeUse& use) const {
  if (basis.casts_by_torchao())
    push_cast(as_double(basis.own_rows(n)) * as_double(basis.model.hidden), true, ops, use);
}

// Copies of a layer's weights in a model without experts. A forward makes both orders, unless FSDP has
// gathered them in FP8; then a backward makes the other one. Recomputation by operator keeps the largest
// values and casts again.
void CastCosts::push_weight_copies(LayerKind kind, bool backward, OpList& ops, RangeUse& use) const {
  if (!basis.torch_layers() || basis.model.mla || basis.model.moe) return;
  std::int64_t elements = 0;
  for (const LinearLayer& l : basis.model.linear_layers(basis.model.first_of(kind)))
    elements += l.count * l.in * l.out;
  const double weights = as_double(elements) / basis.layout.tensor;
  const double of_gathered = basis.gathers_fp8_parameters() ? kCopyOut / 2 : kCopyOut;
  if (basis.layout.zero == 3) {
    ops.push(kernels.moves(OpName::permute, Elementwise::copy, of_gathered * weights, use));
    if (!backward) ops.mark_once(ops.size() - 1);  // a recomputed forward finds the backward's copy
  }
  if (!basis.casts_by_torchao()) return;
  if (basis.gathers_fp8_parameters()) {
    if (backward) ops.push(kernels.moves(OpName::quantize, Elementwise::copy, kTranspose * weights, use));
  } else if (!backward || basis.layout.repeats(RecomputeModule::per_op)) {
    push_cast(weights, backward, ops, use);
  }
}

}  // namespace equipoise
