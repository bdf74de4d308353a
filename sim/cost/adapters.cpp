// The gradients of linear layers, of which some may be frozen, and what LoRA's adapters add to them.
//
// A frozen layer y = W x still passes gradients on (dx = W^T dy); the product for W's own gradient vanishes, and
// with it the need for x. An adapter beside it adds y += B (A x): two thin products in the forward, four in the
// backward, and the kernels that scale its output and add it, all in bf16. With tensor parallelism it is cut as
// Megatron Bridge's ParallelLinearAdapter:
// - beside a column-parallel layer A's rows are shared out, so that A x is gathered, and B's rows are the
//   layer's. Its input is the layer's, gathered and kept whole, so that no backward gathers it again.
// - beside a row-parallel layer A's columns are the layer's, so that A x is summed up, and B's rows are shared
//   out. Its output is gathered over them before a rank takes its tokens, and the same happens to its gradient.
// The gradient of A x is summed up over the ranks either way.
#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {

constexpr double kBf16Bytes = 2;

static WeightKind weights_of(OpName forward) {
  if (forward == OpName::qkv_gemm || forward == OpName::mla_projection) return WeightKind::qkv;
  if (forward == OpName::out_gemm) return WeightKind::proj;
  if (forward == OpName::gate_up_gemm) return WeightKind::fc1;
  if (forward == OpName::down_gemm) return WeightKind::fc2;
  return forward == OpName::router ? WeightKind::router : WeightKind::head;
}

Op LayerCosts::thin_product(OpName name, const AdaptedLayer& layer, std::int64_t m, std::int64_t n,
                            std::int64_t k, RangeUse& use) const {
  const GemmRole role = name == OpName::input_gradient    ? GemmRole::input_gradient
                        : name == OpName::weight_gradient ? GemmRole::weight_gradient
                                                          : GemmRole::forward;
  return grouped_gemm(logits_gemm_, name, role, layer.experts, m, n, k, use);
}

// Of A x, or of its gradient: gathered from its shares, or summed up from every rank's part.
Op LayerCosts::thin_exchange(const AdaptedLayer& layer, Collective kind, std::int64_t width,
                             RangeUse& use) const {
  Op op{kind == Collective::all_gather ? OpName::tp_all_gather : OpName::tp_reduce_scatter, Stream::tp};
  op.bytes = kBf16Bytes * as_double(layer.tokens) * as_double(width);
  op.duration = to_picoseconds(collectives_.seconds(kind, op.bytes, layer.group, use));
  return op;
}

void LayerCosts::push_adapter(const AdaptedLayer& layer, OpName name, OpList& ops, RangeUse& use) const {
  const std::int64_t r = model_.training.lora_dim;
  const std::int64_t own = layer.column ? r / layer.ranks : r;  // rows of A on this rank
  ops.push(thin_product(name, layer, layer.rows, own, layer.in, use));
  if (layer.ranks > 1)
    ops.push(thin_exchange(layer, layer.column ? Collective::all_gather : Collective::all_reduce, r, use));
  const std::int64_t out = layer.column ? layer.out : layer.out / layer.ranks;
  ops.push(thin_product(name, layer, layer.rows, out, r, use));
  if (layer.gathers_output()) ops.push(thin_exchange(layer, Collective::all_gather, layer.out, use));
  // Scaled (read, written), then added to the layer's output (two read, one written).
  ops.push(moves(OpName::residual, Elementwise::residual_add,
                 5 * as_double(layer.tokens) * as_double(out) * element_bytes_, use));
}

void LayerCosts::push_adapter_gradients(const AdaptedLayer& layer, OpList& ops, RangeUse& use) const {
  const std::int64_t r = model_.training.lora_dim;
  const std::int64_t own = layer.column ? r / layer.ranks : r;
  const std::int64_t out = layer.column ? layer.out : layer.out / layer.ranks;
  if (layer.gathers_output()) ops.push(thin_exchange(layer, Collective::all_gather, layer.out, use));
  // The output's gradient scaled, and at the end the input's added to the layer's own.
  ops.push(moves(OpName::residual, Elementwise::residual_add,
                 as_double(layer.tokens) * (2 * as_double(out) + 3 * as_double(layer.in)) * element_bytes_, use,
                 ElementwisePass::backward));
  ops.push(thin_product(OpName::input_gradient, layer, layer.rows, r, out, use));
  if (layer.ranks > 1) ops.push(thin_exchange(layer, Collective::all_reduce, r, use));
  ops.push(thin_product(OpName::weight_gradient, layer, r, out, layer.rows, use));
  ops.push(thin_product(OpName::input_gradient, layer, layer.rows, layer.in, own, use));
  ops.push(thin_product(OpName::weight_gradient, layer, layer.in, own, layer.rows, use));
}

bool LayerCosts::adapts(OpName forward) const {
  return model_.training.adapts(weights_of(forward));
}

void LayerCosts::push_adapter_of(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, bool column,
                                 OpList& ops, RangeUse& use) const {
  if (!adapts(product.name)) return;
  push_adapter(dense_adapter(m, n, k, column), product.name, ops, use);
}

LayerCosts::AdaptedLayer LayerCosts::dense_adapter(std::int64_t m, std::int64_t n, std::int64_t k,
                                                   bool column) const {
  return {m, m, n, k, 1, column, layout_.tensor, tp_group_};
}

// Gradients of a GEMM whose forward was m x n x k. Column-parallel: Megatron gathers the input again under
// the input-gradient GEMM and reduce-scatters that gradient under the weight-gradient GEMM. Row-parallel: the
// output's gradient is gathered first, exposed.
void LayerCosts::push_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k, bool column,
                                OpList& ops, RangeUse& use) const {
  push_gradients(weights,
                 column ? gemm(OpName::input_gradient, m, k, n, use)
                        : fused_products(OpName::input_gradient, m, {n}, k, use),
                 gemm(OpName::weight_gradient, k, n, m, use), m, n, k, column, ops, use);
}

void LayerCosts::push_gradients(WeightKind weights, Op input, Op weight, std::int64_t m, std::int64_t n,
                                std::int64_t k, bool column, OpList& ops, RangeUse& use) const {
  const bool trains = model_.training.trains(weights), adapts = model_.training.adapts(weights);
  if (adapts) push_adapter_gradients(dense_adapter(m, n, k, column), ops, use);
  if (layout_.tensor > 1 && column) {
    // What was gathered for the forward, unless a norm that is run again brings back a rank's part of it.
    const bool kept = torch_layers() && !layout_.repeats(RecomputeModule::layernorm);
    Op gather = torch_layers() ? tp_collective(OpName::tp_all_gather, m, k, use)
                               : gather_cast(m, k, weights != WeightKind::head && !adapts, use);
    Op scatter = tp_collective(OpName::tp_reduce_scatter, m, k, use);
    gather.with_next = true;
    scatter.with_next = trains && !kept;  // under the weight's product, if there is one
    if (trains && !kept) {
      ops.push(gather);
      const int sms = torch_layers() ? 0 : framework_.tp_overlap_sms;
      input.duration += lost_under(gather.duration, sms, false);
      weight.duration += lost_under(scatter.duration, sms, false);
    }
    ops.push(input);
    ops.push(scatter);
  } else {
    if (layout_.tensor > 1) {
      Op gather = gather_cast(m, n, weights != WeightKind::head, use);
      if (overlaps_tp(weights != WeightKind::head)) fuse(gather, input, ops, use);
      ops.push(gather);
    }
    ops.push(input);
  }
  if (trains) ops.push(weight);
}

// Of a layer that every TP rank holds whole, for its own tokens.
void LayerCosts::push_replicated_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k,
                                           OpList& ops, RangeUse& use) const {
  if (model_.training.adapts(weights))
    push_adapter_gradients({m, m, n, k, 1, true, 1, tp_group_}, ops, use);
  ops.push(gemm(OpName::input_gradient, m, k, n, use));
  if (model_.training.trains(weights)) ops.push(gemm(OpName::weight_gradient, k, n, m, use));
}

}  // namespace equipoise
