#include "sim/cost/linear_costs.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {

// Barriers of asynchronous TP per collective: no piece of a product runs during them.
static constexpr int kBarriers = 3;

Op LinearCosts::products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                         std::int64_t k, RangeUse& use) const {
  const auto of_width = [&](std::int64_t width) {
    if (name == OpName::input_gradient) return kernels_.gemm(name, m, k, width, use);
    return name == OpName::weight_gradient ? kernels_.gemm(name, k, width, m, use)
                                           : kernels_.gemm(name, m, width, k, use);
  };
  const bool apart = basis_.framework.own_kernels || basis_.torch_layers();
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
      basis_.torch_layers() && basis_.layout.tensor > 1 && overlaps_tp(name != OpName::logits_gemm);
  Op op = products(name, pieces ? basis_.own_rows(m) : m, widths, k, use);
  if (!pieces) return op;
  op.duration *= basis_.layout.tensor;
  op.launches *= static_cast<std::uint32_t>(basis_.layout.tensor);
  op.flops *= basis_.layout.tensor;
  op.bytes *= basis_.layout.tensor;
  return op;
}

Op LinearCosts::gather_cast(std::int64_t tokens, std::int64_t width, bool is_cast, RangeUse& use) const {
  Op op{OpName::tp_all_gather, Stream::tp};
  op.bytes = (is_cast && basis_.layout.precision == Precision::fp8 ? 1 : basis_.element_bytes) *
             as_double(tokens) * as_double(width);
  op.duration =
      to_picoseconds(kernels_.collectives().seconds(Collective::all_gather, op.bytes, basis_.tp_group, use));
  return overlaps_tp(is_cast) ? op : kernels_.in_order(op, use);
}

// Of asynchronous TP nothing hides the first piece of the product that waits for a copy, or the last copy
// that waits for a piece; a rank's own part on its way to where others read it; barriers; nor the sum of what
// came in.
void LinearCosts::fuse(Op& collective, const Op& product, OpList& ops, RangeUse& use) const {
  collective.with_next = true;
  if (!basis_.torch_layers()) return;
  const bool gathers = collective.name == OpName::tp_all_gather;
  const double parts = basis_.layout.tensor;
  collective.duration += product.duration / basis_.layout.tensor;
  Op apart = kernels_.moves(OpName::permute, Elementwise::copy,
                            collective.bytes * (gathers ? 2 / parts : 1 + 1 / parts), use);
  apart.launches += kBarriers;
  apart.duration += kBarriers * kernels_.moves(OpName::permute, Elementwise::copy, 1, use).duration;
  ops.push(apart);
}

// Sequence parallelism: a column-parallel GEMM needs the whole sequence first (all-gather).
void LinearCosts::push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                              RangeUse& use) const {
  push_gathered(fused_products(name, m, {n}, k, use), m, n, k, ops, use);
}

void LinearCosts::push_gathered(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k,
                                OpList& ops, RangeUse& use) const {
  if (basis_.layout.tensor > 1) {
    const bool of_layer = product.name != OpName::logits_gemm && product.name != OpName::mtp_projection;
    // An adapter reads what was gathered in bf16.
    Op gather =
        gather_cast(m, k, of_layer && (basis_.torch_layers() || !adapters_.adapts(product.name)), use);
    if (overlaps_tp(of_layer)) fuse(gather, product, ops, use);
    ops.push(gather);
  }
  ops.push(product);
  adapters_.push_of(product, m, n, k, true, ops, use);
}

// A row-parallel GEMM ends in a reduce-scatter of its output. Userbuffers (Transformer Engine,
// split_overlap_rs of comm_gemm_overlap.cpp) cut it in four: each is scattered under the next, which runs on
// the SMs that the scatter leaves, and nothing hides the last.
void LinearCosts::push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                           RangeUse& use) const {
  Op product = fused_products(name, m, {n}, k, use);
  if (basis_.layout.tensor == 1) {
    ops.push(product);
  } else if (basis_.framework.tp_overlap_forward) {
    Op scatter = kernels_.tp_collective(OpName::tp_reduce_scatter, m, n, basis_.tp_group, use);
    fuse(scatter, product, ops, use);
    constexpr int kPieces = 4;  // num_splits
    const bool in_pieces = !basis_.torch_layers() && basis_.framework.tp_overlap_sms > 0;
    Op last = scatter;
    if (in_pieces) {
      last.with_next = false;
      last.launches = 0;  // a framework states them for the whole scatter
      last.duration /= kPieces;
      last.bytes /= kPieces;
      scatter.duration -= last.duration;
      scatter.bytes -= last.bytes;
      const int sms = basis_.profile.device().sms;
      product.duration = product.duration * sms / std::max(1, sms - basis_.framework.tp_overlap_sms);
      product.launches *= kPieces;
    }
    ops.push(scatter);
    ops.push(product);
    if (in_pieces) ops.push(last);
  } else {
    ops.push(product);
    ops.push(kernels_.tp_collective(OpName::tp_reduce_scatter, m, n, use));
  }
  adapters_.push_of(product, m, n, k, false, ops, use);
}

// A product that every TP rank does for its own tokens, with the whole weight.
void LinearCosts::push_replicated(std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                                  RangeUse& use) const {
  const Op product = kernels_.gemm(OpName::mla_projection, m, n, k, use);
  ops.push(product);
  if (basis_.model.training.adapts(WeightKind::qkv))
    adapters_.push({m, m, n, k, 1, true, 1, basis_.tp_group}, product.name, ops, use);
}

// Gradients of a GEMM whose forward was m x n x k. Column-parallel: Megatron gathers the input again under
// the input-gradient GEMM and reduce-scatters that gradient under the weight-gradient GEMM. Row-parallel: the
// output's gradient is gathered first, exposed.
void LinearCosts::push_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k,
                                 bool column, OpList& ops, RangeUse& use) const {
  push_gradients(weights,
                 column ? kernels_.gemm(OpName::input_gradient, m, k, n, use)
                        : fused_products(OpName::input_gradient, m, {n}, k, use),
                 kernels_.gemm(OpName::weight_gradient, k, n, m, use), m, n, k, column, ops, use);
}

void LinearCosts::push_gradients(WeightKind weights, Op input, Op weight, std::int64_t m, std::int64_t n,
                                 std::int64_t k, bool column, OpList& ops, RangeUse& use) const {
  const bool trains = basis_.model.training.trains(weights), adapts = basis_.model.training.adapts(weights);
  if (adapts) adapters_.push_gradients(adapters_.of_dense(m, n, k, column), ops, use);
  if (basis_.layout.tensor > 1 && column) {
    // What was gathered for the forward, unless a norm that is run again brings back a rank's part of it.
    const bool kept = basis_.torch_layers() && !basis_.layout.repeats(RecomputeModule::layernorm);
    Op gather = basis_.torch_layers() ? kernels_.tp_collective(OpName::tp_all_gather, m, k, use)
                                      : gather_cast(m, k, weights != WeightKind::head && !adapts, use);
    Op scatter = kernels_.tp_collective(OpName::tp_reduce_scatter, m, k, use);
    gather.with_next = true;
    scatter.with_next = trains && !kept;  // under the weight's product, if there is one
    if (trains && !kept) {
      ops.push(gather);
      const int sms = basis_.torch_layers() ? 0 : basis_.framework.tp_overlap_sms;
      input.duration += kernels_.lost_under(gather.duration, sms, false);
      weight.duration += kernels_.lost_under(scatter.duration, sms, false);
    }
    ops.push(input);
    ops.push(scatter);
  } else {
    if (basis_.layout.tensor > 1) {
      Op gather = gather_cast(m, n, weights != WeightKind::head, use);
      if (overlaps_tp(weights != WeightKind::head)) fuse(gather, input, ops, use);
      ops.push(gather);
    }
    ops.push(input);
  }
  if (trains) ops.push(weight);
}

// Of a layer that every TP rank holds whole, for its own tokens.
void LinearCosts::push_replicated_gradients(WeightKind weights, std::int64_t m, std::int64_t n,
                                            std::int64_t k, OpList& ops, RangeUse& use) const {
  if (basis_.model.training.adapts(weights))
    adapters_.push_gradients({m, m, n, k, 1, true, 1, basis_.tp_group}, ops, use);
  ops.push(kernels_.gemm(OpName::input_gradient, m, k, n, use));
  if (basis_.model.training.trains(weights)) ops.push(kernels_.gemm(OpName::weight_gradient, k, n, m, use));
}

}  // namespace equipoise
