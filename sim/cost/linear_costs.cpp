#include "sim/cost/linear_costs.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {

// Barriers of asynchronous TP per collective: no piece of a product runs during them.
static constexpr int kBarriers = 3;

Op LinearCosts::products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                         std::int64_t k, RangeUse& use) const {
  const auto of_width = [&](std::int64_t width) {
    if (name == OpName::input_gradient) return kernels.gemm(name, m, k, width, use);
    return name == OpName::weight_gradient ? kernels.gemm(name, k, width, m, use)
                                           : kernels.gemm(name, m, width, k, use);
  };
  const bool apart = basis.framework.own_kernels || basis.torch_layers();
  if (!apart) return of_width(sum_of(widths));
  Op sum = of_width(*widths.begin());
  for (const auto* width = widths.begin() + 1; width != widths.end(); ++width) {
    const Op one = of_width(*width);
    sum.duration += one.duration;
    sum.flops += one.flops;
    sum.bytes += one.bytes;
  }
  return sum;
}

Op LinearCosts::fused_products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                               std::int64_t k, RangeUse& use) const {
  const bool pieces =
      basis.torch_layers() && basis.layout.tensor > 1 && overlaps_tp(name != OpName::logits_gemm);
  Op op = products(name, pieces ? basis.own_rows(m) : m, widths, k, use);
  if (!pieces) return op;
  op.duration *= basis.layout.tensor;
  op.launches *= static_cast<std::uint32_t>(basis.layout.tensor);
  op.flops *= basis.layout.tensor;
  op.bytes *= basis.layout.tensor;
  return op;
}

Op LinearCosts::gather_cast(std::int64_t tokens, std::int64_t width, bool is_cast, RangeUse& use) const {
  Op op{OpName::tp_all_gather, Stream::tp};
  op.bytes = (is_cast && basis.layout.precision == Precision::fp8 ? 1 : basis.element_bytes) *
             as_double(tokens) * as_double(width);
  op.duration =
      to_picoseconds(kernels.collectives().seconds(Collective::all_gather, op.bytes, basis.tp_group, use));
  return overlaps_tp(is_cast) ? op : kernels.in_order(op, use);
}

// What asynchronous TP leaves exposed: the first piece of the product that waits for a copy, or the last copy
// that waits for a piece; a rank's own part on its way to its readers; barriers; and the sum of what arrived.
void LinearCosts::fuse(Op& collective, const Op& product, OpList& ops, RangeUse& use) const {
  collective.with_next = true;
  if (!basis.torch_layers()) return;
  const bool gathers = collective.name == OpName::tp_all_gather;
  const double parts = basis.layout.tensor;
  collective.duration += product.duration / basis.layout.tensor;
  Op apart = kernels.moves(OpName::permute, Elementwise::copy,
                           collective.bytes * (gathers ? 2 / parts : 1 + 1 / parts), use);
  apart.launches += kBarriers;
  apart.duration += kBarriers * kernels.moves(OpName::permute, Elementwise::copy, 1, use).duration;
  ops.push(apart);
}

// Sequence parallelism: a column-parallel GEMM needs the whole sequence first (all-gather).
void LinearCosts::push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                              RangeUse& use) const {
  push_gathered(fused_products(name, m, {n}, k, use), m, n, k, ops, use);
}

void LinearCosts::push_gathered(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k,
                                OpList& ops, RangeUse& use) const {
  if (basis.layout.tensor > 1) {
    const bool of_layer = product.name != OpName::logits_gemm && product.name != OpName::mtp_projection;
    // An adapter reads what was gathered in bf16.
    Op gather = gather_cast(m, k, of_layer && (basis.torch_layers() || !adapters.adapts(product.name)), use);
    if (overlaps_tp(of_layer)) fuse(gather, product, ops, use);
    ops.push(gather);
  }
  ops.push(product);
  adapters.push_of(product, m, n, k, true, ops, use);
}

// A row-parallel GEMM ends with a reduce-scatter of its output. Userbuffers (Transformer Engine,
// split_overlap_rs of comm_gemm_overlap.cpp) cut it in four: each piece is scattered under the next, which
// runs on the SMs that the scatter leaves free. Nothing hides the last.
void LinearCosts::push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                           RangeUse& use) const {
  Op product = fused_products(name, m, {n}, k, use);
  if (basis.layout.tensor == 1) {
    ops.push(product);
  } else if (basis.framework.tp_overlap_forward) {
    Op scatter = kernels.tp_collective(OpName::tp_reduce_scatter, m, n, basis.tp_group, use);
    fuse(scatter, product, ops, use);
    constexpr int kPieces = 4;  // num_splits
    const bool in_pieces = !basis.torch_layers() && basis.framework.tp_overlap_sms > 0;
    Op last = scatter;
    if (in_pieces) {
      last.with_next = false;
      last.launches = 0;  // because a framework states them for the whole scatter
      last.duration /= kPieces;
      last.bytes /= kPieces;
      scatter.duration -= last.duration;
      scatter.bytes -= last.bytes;
      const int sms = basis.profile.device().sms;
      product.duration = product.duration * sms / std::max(1, sms - basis.framework.tp_overlap_sms);
      product.launches *= kPieces;
    }
    ops.push(scatter);
    ops.push(product);
    if (in_pieces) ops.push(last);
  } else {
    ops.push(product);
    ops.push(kernels.tp_collective(OpName::tp_reduce_scatter, m, n, use));
  }
  adapters.push_of(product, m, n, k, false, ops, use);
}

// A product that every TP rank does for its own tokens, with the whole weight.
void LinearCosts::push_replicated(std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                                  RangeUse& use) const {
  const Op product = kernels.gemm(OpName::mla_projection, m, n, k, use);
  ops.push(product);
  if (basis.model.training.adapts(WeightKind::qkv))
    adapters.push({m, m, n, k, 1, true, 1, basis.tp_group}, product.name, ops, use);
}

// Gradients of a GEMM whose forward was m x n x k. Column-parallel: Megatron gathers the input again under
// the input-gradient GEMM, and reduce-scatters that gradient under the weight-gradient GEMM. Row-parallel:
// the output's gradient is gathered first, exposed.
void LinearCosts::push_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k,
                                 bool column, OpList& ops, RangeUse& use) const {
  push_gradients(weights,
                 column ? kernels.gemm(OpName::input_gradient, m, k, n, use)
                        : fused_products(OpName::input_gradient, m, {n}, k, use),
                 kernels.gemm(OpName::weight_gradient, k, n, m, use), m, n, k, column, ops, use);
}

void LinearCosts::push_gradients(WeightKind weights, Op input, Op weight, std::int64_t m, std::int64_t n,
                                 std::int64_t k, bool column, OpList& ops, RangeUse& use) const {
  const bool trains = basis.model.training.trains(weights), adapts = basis.model.training.adapts(weights);
  if (adapts) adapters.push_gradients(adapters.of_dense(m, n, k, column), ops, use);
  if (basis.layout.tensor > 1 && column) {
    // What was gathered for the forward, unless a norm that is run again brings back a rank's part of it.
    const bool kept = basis.torch_layers() && !basis.layout.repeats(RecomputeModule::layernorm);
    Op gather = basis.torch_layers() ? kernels.tp_collective(OpName::tp_all_gather, m, k, use)
                                     : gather_cast(m, k, weights != WeightKind::head && !adapts, use);
    Op scatter = kernels.tp_collective(OpName::tp_reduce_scatter, m, k, use);
    gather.with_next = true;
    scatter.with_next = trains && !kept;  // under the weight's product, if there is one
    if (trains && !kept) {
      ops.push(gather);
      const int sms = basis.torch_layers() ? 0 : basis.framework.tp_overlap_sms;
      input.duration += kernels.lost_under(gather.duration, sms, false);
      weight.duration += kernels.lost_under(scatter.duration, sms, false);
    }
    ops.push(input);
    ops.push(scatter);
  } else {
    if (basis.layout.tensor > 1) {
      Op gather = gather_cast(m, n, weights != WeightKind::head, use);
      if (overlaps_tp(weights != WeightKind::head)) fuse(gather, input, ops, use);
      ops.push(gather);
    }
    ops.push(input);
  }
  if (trains) ops.push(weight);
}

// Every TP rank holds such a layer whole, and makes its gradients for its own tokens.
void LinearCosts::push_replicated_gradients(WeightKind weights, std::int64_t m, std::int64_t n,
                                            std::int64_t k, OpList& ops, RangeUse& use) const {
  if (basis.model.training.adapts(weights))
    adapters.push_gradients({m, m, n, k, 1, true, 1, basis.tp_group}, ops, use);
  ops.push(kernels.gemm(OpName::input_gradient, m, k, n, use));
  if (basis.model.training.trains(weights)) ops.push(kernels.gemm(OpName::weight_gradient, k, n, m, use));
}

}  // namespace equipoise
