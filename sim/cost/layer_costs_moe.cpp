// What a rank executes in the FFN of a mixture-of-experts layer.
#include <cmath>

#include "sim/cost/expert_exchange.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

// Grouped GEMMs of the experts that this rank holds, for `routed` token copies in all: a group an expert, each
// with weights and tiles of its own.
void LayerCosts::push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *model_.moe;
  const std::int64_t local = moe.experts / layout_.expert;
  const auto busiest =
      static_cast<std::int64_t>(std::llround(as_double(routed) * framework_.expert_imbalance));
  const std::int64_t rows = (busiest + local - 1) / local;  // of one expert
  const std::int64_t f = moe.expert_ffn / layout_.expert_tensor_size();
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = model_.hidden;
  const auto activate = [&](ElementwisePass pass) {
    const std::int64_t width = pass == ElementwisePass::forward ? up + f : 2 * up + f;
    ops.push(moves(OpName::activation, Elementwise::swiglu,
                   as_double(busiest) * as_double(width) * element_bytes_, use, pass));
  };
  if (!backward) {
    push_quantize(busiest, h, ops, use);
    ops.push(grouped_gemm(OpName::expert_gemm, GemmRole::forward, local, rows, up, h, use));
    activate(ElementwisePass::forward);
    push_quantize(busiest, f, ops, use);
    ops.push(grouped_gemm(OpName::expert_gemm, GemmRole::forward, local, rows, h, f, use));
    return;
  }
  const auto gradients = [&](std::int64_t out, std::int64_t in) {
    push_quantize(busiest, out, ops, use);
    ops.push(grouped_gemm(OpName::expert_gemm, GemmRole::input_gradient, local, rows, in, out, use));
    ops.push(grouped_gemm(OpName::weight_gradient, GemmRole::weight_gradient, local, in, out, rows, use));
  };
  if (layout_.repeats(RecomputeModule::moe_act) && !layout_.repeats(RecomputeModule::moe)) {
    activate(ElementwisePass::forward);
    ops.mark_again(ops.size() - 1);
  }
  gradients(h, f);
  activate(ElementwisePass::backward);
  gradients(up, h);
}

// Copies of rows of h elements, put into or out of the order of experts: each element read or written once.
void LayerCosts::push_permute(double rows_moved, OpList& ops, RangeUse& use) const {
  ops.push(moves(OpName::permute, Elementwise::copy, rows_moved * as_double(model_.hidden) * element_bytes_,
                 use));
}

Op LayerCosts::expert_collective(OpName name, std::int64_t token_copies, RangeUse& use) const {
  return tp_collective(name, token_copies, model_.hidden, grid_.expert_tensor_shape(), use);
}

// Router, expert-parallel all-to-all there and back, grouped GEMMs, shared experts. Tokens travel
// sequence-parallel and are gathered over the expert's tensor-parallel ranks where they arrive: over TP, or
// over fewer (arXiv 2504.14960), or over none.
// A backward sends the output's gradients to the experts and their inputs' gradients back; the router's
// gradients follow.
//
// Where the shared experts run (framework.expert_overlap):
// - none, deepep: behind the exchanges, as they hide nothing.
// - shared-expert: the first product and its activation under the exchange there, the second under the one
//   back (Megatron-LM's moe_shared_expert_overlap: linear_fc1 behind token_dispatch, linear_fc2 behind
//   token_combine); backward the second's gradients under the first exchange, the first's under the second.
// - dualpipe: with the routed ones, since the exchanges run under another micro-batch.
void LayerCosts::push_moe(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *model_.moe;
  const std::int64_t t = layout_.tensor;
  const std::int64_t rows = (n + t - 1) / t;
  const std::int64_t h = model_.hidden;
  const std::int64_t e = layout_.expert_tensor_size();
  const std::int64_t arriving = (e == t ? n : rows * e) * moe.active;
  const bool exchanges = layout_.expert > 1;
  const bool shared = moe.shared_width() > 0;
  const ExpertOverlap overlap = framework_.expert_overlap;
  const ExpertExchange experts(model_, framework_, grid_.shape(Axis::expert), element_bytes_, collectives_);
  const auto exchange_over_shared = [&](ExchangeWay way, bool up) {
    const std::size_t first = ops.size();
    if (exchanges) ops.push(experts.op(rows, way, use));
    if (!shared || !exchanges || overlap != ExpertOverlap::shared_expert) return;
    if (up)
      push_ffn_up(n, moe.shared_width(), backward, ops, use);
    else
      push_ffn_down(n, moe.shared_width(), backward, ops, use);
    ops.put_under(first);
  };
  // A token's copies are written out by destination before NCCL's all-to-all, and summed up after it; where
  // they arrive they are sorted by expert, and back. DeepEP's kernels send from and sum up in place.
  const bool in_place = exchanges && framework_.expert_dispatcher == ExpertDispatcher::deepep;
  const double copied = as_double(rows) * as_double(moe.active + 1);
  const double sorted = exchanges && moe.experts > layout_.expert ? 2 * as_double(arriving) : 0;
  if (!backward) ops.push(gemm(OpName::router, rows, moe.experts, h, use));
  if (!in_place) push_permute(copied, ops, use);
  exchange_over_shared(ExchangeWay::to_experts, !backward);
  if (e > 1) ops.push(expert_collective(OpName::tp_all_gather, arriving, use));
  if (sorted > 0) push_permute(sorted, ops, use);
  push_experts(arriving, backward, ops, use);
  if (sorted > 0) push_permute(sorted, ops, use);
  if (e > 1) ops.push(expert_collective(OpName::tp_reduce_scatter, arriving, use));
  const bool beside_routed = exchanges && overlap == ExpertOverlap::dualpipe;
  if (shared && beside_routed) push_dense_ffn(n, moe.shared_width(), backward, ops, use);
  exchange_over_shared(ExchangeWay::back, backward);
  const bool behind = !exchanges || overlap == ExpertOverlap::none || overlap == ExpertOverlap::deepep;
  if (!in_place) push_permute(copied, ops, use);
  if (shared && behind) push_dense_ffn(n, moe.shared_width(), backward, ops, use);
  if (backward) {
    ops.push(gemm(OpName::router, rows, h, moe.experts, use));
    ops.push(gemm(OpName::router, h, moe.experts, rows, use));
  }
}

}  // namespace equipoise
