// What no plan can beat: the local ops of a layer without latencies and waves, attention by visible pairs, K
// and V at the rate of the links.
//
// Every op of forward_ops and backward_ops takes at least its products at the rate of the fastest tile, or
// its bytes at that of the fastest memory or link; products and bytes grow with the tokens; and the time of a
// list grows with that of each op. So the time of the list for any number of tokens is at least the tokens'
// share of that of the list for some number with all ops at these rates.

#include <algorithm>
#include <limits>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "profiler/profile/dense_kernels.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

// Durations are whole picoseconds: so that nothing is lost by that, times here are of so many times the work.
constexpr double kScale = 1e6;

struct LeastRates {
  double flop = 0, logits_flop = 0, byte = 0;
  double all_gathered_byte = 0, reduce_scattered_byte = 0;  // of TP

  [[nodiscard]] double seconds(const Op& op) const {
    if (op.name == OpName::tp_all_gather) return op.bytes * all_gathered_byte;
    if (op.name == OpName::tp_reduce_scatter) return op.bytes * reduce_scattered_byte;
    if (op.stream != Stream::compute) return 0;  // exchanges between experts
    if (op.name == OpName::logits_gemm) return op.flops * logits_flop;
    return op.flops > 0 ? op.flops * flop : op.bytes * byte;
  }

  // Seconds per token of a list that is for `tokens` tokens. `again`: of what a recomputation repeats of it.
  [[nodiscard]] double of_token(const OpList& list, std::int64_t tokens, bool again) const {
    OpList least;
    for (Op op : list.ops()) {
      if (again && op.once) continue;
      op.duration = static_cast<Picoseconds>(seconds(op) * 1e12 * kScale);
      least.push(op);
    }
    return to_seconds(run_time(least.ops()).total) / kScale / as_double(tokens);
  }
};

}  // namespace

// The share of the copies at a rank's experts that rounding up adds, at most: the rank holds experts / EP of
// them, and tokens x active x expert TP / TP copies arrive (push_moe).
double LayerCosts::most_rounding(std::int64_t tokens) const {
  const double spread =
      as_double(layout_.tensor) / (as_double(layout_.expert) * layout_.expert_tensor_size());
  const double capacity = framework_.expert_capacity_factor;
  const double kept = capacity > 0 ? std::min(1.0, capacity) : 1;  // of the copies, where the rest is dropped
  return as_double(model_.moe->experts) * std::max(1.0, spread) /
         (as_double(tokens * model_.moe->active) * kept);
}

LeastCosts LayerCosts::least() const {
  LeastCosts least;
  LeastRates rates;
  rates.flop = gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  if (expert_gemm_)
    rates.flop = std::min(rates.flop, expert_gemm_->least_seconds_per_flop() * framework_.gemm_slowdown);
  if (model_.moe) rates.flop *= std::min(1.0, framework_.expert_gemm_slowdown);
  rates.logits_flop = logits_gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  rates.byte =
      least_elementwise_seconds_per_byte(profile_, framework_.own_kernels) * framework_.elementwise_slowdown;
  const auto of_groups = [&](Collective kind) {
    double rate = layout_.tensor > 1 ? collectives_.least_seconds_per_byte(kind, tp_group_) : 0;
    if (layout_.expert_tensor_size() > 1 && model_.moe)
      rate = std::min(rate, collectives_.least_seconds_per_byte(kind, grid_.expert_tensor_shape()));
    return rate;
  };
  rates.all_gathered_byte = of_groups(Collective::all_gather);
  rates.reduce_scattered_byte = of_groups(Collective::reduce_scatter);

  RangeUse unused;
  OpList before, after;
  const std::int64_t tokens = std::int64_t{model_.moe ? 4096 : 64} * layout_.tensor;
  // Seconds of the kind of layer that takes least; `own`: without what arrives at experts from other ranks.
  double forward = std::numeric_limits<double>::infinity(), backward = forward;
  double own_forward = forward, own_backward = forward, again = forward;
  try {
    for (int k = 0; k < kLayerKinds; ++k) {
      if (layer_counts_[at(k)] == 0) continue;
      const auto kind = static_cast<LayerKind>(k);
      const bool shared = is_moe(kind) && layout_.expert > 1;
      // Tokens of experts are rounded up to the same number each, by less than one for each expert of a rank,
      // and the busiest rank has more than its part.
      const double share =
          is_moe(kind) ? (1 - most_rounding(tokens)) / std::max(1.0, framework_.expert_imbalance) : 1;
      const auto of_token = [&](auto&& make_ops, bool repeated = false) {
        const auto seconds = [&](std::int64_t n) {
          make_ops(n);
          return rates.of_token(before, tokens, repeated) + rates.of_token(after, tokens, repeated);
        };
        const double once = seconds(tokens);
        // Copies of weights cost the same with any number of tokens.
        return share * (torch_layers() && !model_.moe ? seconds(2 * tokens) - once : once);
      };
      const auto forward_of = [&](auto... arrived) {
        return of_token([&](std::int64_t n) { forward_ops(kind, n, arrived..., before, after, unused); });
      };
      const auto backward_of = [&](auto... arrived) {
        return of_token([&](std::int64_t n) { backward_ops(kind, n, arrived..., before, after, unused); });
      };
      forward = std::min(forward, forward_of());
      own_forward = std::min(own_forward, shared ? forward_of(ExpertArrivals{}) : forward_of());
      again =
          std::min({again, own_forward,
                    of_token([&](std::int64_t n) { forward_ops(kind, n, before, after, unused); }, true)});
      backward = std::min(backward, backward_of());
      own_backward = std::min(own_backward, shared ? backward_of(ExpertArrivals{}) : backward_of());
    }
    head_backward_ops(tokens, before, unused);
    least.head_token = rates.of_token(before, tokens, false);
    head_forward_ops(tokens, before, unused);
    rates.reduce_scattered_byte = 0;  // there it is an all-reduce
    least.head_token += rates.of_token(before, tokens, false);
  } catch (const UserError&) {
    forward = backward = own_forward = own_backward = again = least.head_token = 0;  // a profile that does
                                                                                     // not reach so far
  }
  const AttentionModel::Least attention_forward = attention_.least_forward();
  const AttentionModel::Least attention_backward = attention_.least_backward();
  const double slow = framework_.attention_slowdown;
  least.forward_arrived = std::max(0.0, forward - own_forward);
  least.backward_arrived = std::max(0.0, backward - own_backward);
  least.forward_token = own_forward + slow * attention_forward.per_query;
  least.again_token = again + slow * attention_forward.per_query;
  least.forward_pair = slow * attention_forward.per_pair;
  least.backward_token = own_backward + slow * attention_backward.per_query;
  least.backward_pair = slow * attention_backward.per_pair;
  return least;
}

}  // namespace equipoise
