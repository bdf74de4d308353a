#include "sim/cost/adapter_costs.h"

#include "policies/base/index.h"

namespace equipoise {

static WeightKind weights_of(OpName forward) {
  if (forward == OpName::qkv_gemm || forward == OpName::mla_projection) return WeightKind::qkv;
  if (forward == OpName::out_gemm) return WeightKind::proj;
  if (forward == OpName::gate_up_gemm) return WeightKind::fc1;
  if (forward == OpName::down_gemm) return WeightKind::fc2;
  return forward == OpName::router ? WeightKind::router : WeightKind::head;
}

Op AdapterCosts::thin_product(OpName name, const AdaptedLayer& layer, std::int64_t m, std::int64_t n,
                              std::int64_t k, RangeUse& use) const {
  const GemmRole role = name == OpName::input_gradient    ? GemmRole::input_gradient
                        : name == OpName::weight_gradient ? GemmRole::weight_gradient
                                                          : GemmRole::forward;
  return kernels.grouped_gemm(kernels.bf16_gemm(), name, role, layer.experts, m, n, k, use);
}

// A x or its gradient is gathered from its shares, or summed up from every rank's part.
Op AdapterCosts::thin_exchange(const AdaptedLayer& layer, Collective kind, std::int64_t width,
                               RangeUse& use) const {
  Op op{kind == Collective::all_gather ? OpName::tp_all_gather : OpName::tp_reduce_scatter, Stream::tp};
  op.bytes = kBf16Bytes * as_double(layer.tokens) * as_double(width);
  op.duration = to_picoseconds(kernels.collectives().seconds(kind, op.bytes, layer.group, use));
  return op;
}

void AdapterCosts::push(const AdaptedLayer& layer, OpName name, OpList& ops, RangeUse& use) const {
  const std::int64_t r = basis.model.training.lora_dim;
  const std::int64_t own = layer.column ? r / layer.ranks : r;  // rows of A on this rank
  ops.push(thin_product(name, layer, layer.rows, own, layer.in, use));
  if (layer.ranks > 1)
    ops.push(thin_exchange(layer, layer.column ? Collective::all_gather : Collective::all_reduce, r, use));
  const std::int64_t out = layer.column ? layer.out : layer.out / layer.ranks;
  ops.push(thin_product(name, layer, layer.rows, out, r, use));
  if (layer.gathers_output()) ops.push(thin_exchange(layer, Collective::all_gather, layer.out, use));
  // Scaling reads and writes once; the addition to the layer's output reads two tensors and writes one.
  ops.push(kernels.moves(OpName::residual, Elementwise::residual_add,
                         5 * as_double(layer.tokens) * as_double(out) * basis.element_bytes, use));
}

void AdapterCosts::push_gradients(const AdaptedLayer& layer, OpList& ops, RangeUse& use) const {
  const std::int64_t r = basis.model.training.lora_dim;
  const std::int64_t own = layer.column ? r / layer.ranks : r;
  const std::int64_t out = layer.column ? layer.out : layer.out / layer.ranks;
  if (layer.gathers_output()) ops.push(thin_exchange(layer, Collective::all_gather, layer.out, use));
  // First scales the output's gradient; at the end adds the input's gradient to the layer's own.
  ops.push(kernels.moves(
      OpName::residual, Elementwise::residual_add,
      as_double(layer.tokens) * (2 * as_double(out) + 3 * as_double(layer.in)) * basis.element_bytes, use,
      ElementwisePass::backward));
  ops.push(thin_product(OpName::input_gradient, layer, layer.rows, r, out, use));
  if (layer.ranks > 1) ops.push(thin_exchange(layer, Collective::all_reduce, r, use));
  ops.push(thin_product(OpName::weight_gradient, layer, r, out, layer.rows, use));
  ops.push(thin_product(OpName::input_gradient, layer, layer.rows, layer.in, own, use));
  ops.push(thin_product(OpName::weight_gradient, layer, layer.in, own, layer.rows, use));
}

bool AdapterCosts::adapts(OpName forward) const {
  return basis.model.training.adapts(weights_of(forward));
}

void AdapterCosts::push_of(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, bool column,
                           OpList& ops, RangeUse& use) const {
  if (!adapts(product.name)) return;
  push(of_dense(m, n, k, column), product.name, ops, use);
}

AdaptedLayer AdapterCosts::of_dense(std::int64_t m, std::int64_t n, std::int64_t k, bool column) const {
  return {m, m, n, k, 1, column, basis.layout.tensor, basis.tp_group};
}

}  // namespace equipoise
