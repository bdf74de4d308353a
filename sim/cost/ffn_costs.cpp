#include "sim/cost/ffn_costs.h"

#include "policies/base/index.h"

namespace equipoise {

void FfnCosts::push_up(std::int64_t n, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t f = width / basis.layout.tensor;
  const std::int64_t up = (basis.model.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = basis.model.hidden;
  const auto product = [&](OpName name) {  // our own ranks, too, run gate and up as one product
    const bool apart = basis.model.gated_ffn && !basis.framework.own_kernels;
    if (backward)
      return apart ? linear.products(name, n, {f, f}, h, use) : linear.products(name, n, {up}, h, use);
    return apart ? linear.fused_products(name, n, {f, f}, h, use)
                 : linear.fused_products(name, n, {up}, h, use);
  };
  if (backward) {
    ops.push(rows.activation(n, f, ElementwisePass::backward, use));
    casts.push_quantize(WeightKind::fc1, n, up, ops, use);
    linear.push_gradients(WeightKind::fc1, product(OpName::input_gradient), product(OpName::weight_gradient),
                          n, up, h, true, ops, use);
  } else {
    linear.push_gathered(product(OpName::gate_up_gemm), n, up, h, ops, use);
    ops.push(rows.activation(n, f, ElementwisePass::forward, use));
  }
}

void FfnCosts::push_down(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                         RangeUse& use) const {
  const std::int64_t f = width / basis.layout.tensor;
  casts.push_quantize(WeightKind::fc2, backward ? casts.cast_rows(n) : n, backward ? basis.model.hidden : f,
                      ops, use);
  if (backward)
    linear.push_gradients(WeightKind::fc2, n, basis.model.hidden, f, false, ops, use);
  else
    linear.push_row(OpName::down_gemm, n, basis.model.hidden, f, ops, use);
}

void FfnCosts::push(std::int64_t n, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const {
  if (backward) push_down(n, width, backward, ops, use);
  push_up(n, width, backward, ops, use);
  if (!backward) push_down(n, width, backward, ops, use);
}

}  // namespace equipoise
