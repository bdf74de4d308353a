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

// Grouped GEMMs of the experts that this rank holds, for `routed` token copies in all. Each expert's rows are
// padded to the kernel's tile.
void LayerCosts::push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const {
  constexpr std::int64_t kTile = 128;
  const MoeShape& moe = *model_.moe;
  const std::int64_t local = moe.experts / layout_.expert;
  const auto busiest =
      static_cast<std::int64_t>(std::llround(as_double(routed) * framework_.expert_imbalance));
  const std::int64_t each = (busiest + local - 1) / local;
  const std::int64_t rows = local * ((each + kTile - 1) / kTile) * kTile;
  const std::int64_t f = moe.expert_ffn / layout_.tensor;
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = model_.hidden;
  const auto push = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    ops.push(gemm(OpName::expert_gemm, m, n, k, use));
  };
  if (backward) {
    push(rows, f, h);
    push(f, h, rows);
    ops.push(moves(OpName::activation, Elementwise::swiglu,
                   as_double(busiest) * as_double(2 * up + f) * element_bytes_, use,
                   ElementwisePass::backward));
    push(rows, h, up);
    push(h, up, rows);
  } else {
    push(rows, up, h);
    ops.push(moves(OpName::activation, Elementwise::swiglu,
                   as_double(busiest) * as_double(up + f) * element_bytes_, use));
    push(rows, h, f);
  }
}

// Router, expert-parallel all-to-all there and back, grouped GEMMs, shared experts. Expert tensor parallelism
// equals TP (Megatron's default): tokens travel sequence-parallel and are gathered over TP where they arrive.
void LayerCosts::push_moe(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *model_.moe;
  const std::int64_t t = layout_.tensor;
  const std::int64_t rows = (n + t - 1) / t;
  const std::int64_t h = model_.hidden;
  const ExpertExchange experts(model_, framework_, grid_.shape(Axis::expert), element_bytes_, collectives_);
  const auto exchange = [&](ExchangeWay way) {
    if (layout_.expert > 1) ops.push(experts.op(rows, way, use));
  };
  if (backward) {
    ops.push(gemm(OpName::router, rows, h, moe.experts, use));
    ops.push(gemm(OpName::router, h, moe.experts, rows, use));
  } else {
    ops.push(gemm(OpName::router, rows, moe.experts, h, use));
  }
  exchange(ExchangeWay::to_experts);
  if (t > 1) ops.push(tp_collective(OpName::tp_all_gather, n * moe.active, h, use));
  push_experts(n * moe.active, backward, ops, use);
  if (t > 1) ops.push(tp_collective(OpName::tp_reduce_scatter, n * moe.active, h, use));
  exchange(ExchangeWay::back);
  if (moe.shared_width() > 0) push_dense_ffn(n, moe.shared_width(), backward, ops, use);
}

}  // namespace equipoise
