// What no plan can beat: the local ops of a layer, attention by visible pairs, K and V at the rate of the
// links.
//
// Quickly (least), without latencies and waves:
// Every op of forward_ops and backward_ops takes at least its products at the rate of the fastest tile, or
// its bytes at that of the fastest memory or link; products and bytes grow with the tokens; and the time of a
// list grows with that of each op. So the time of the list for any number of tokens is at least the tokens'
// share of that of the list for some number with all ops at these rates.
//
// Closer (least_of_sizes): the times of lists as they are priced never fall with the tokens. So the least of
// a token is found over all sizes of a micro-batch, as near as their steps.

#include <algorithm>
#include <cmath>
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
  double flop = 0, expert_flop = 0, logits_flop = 0, byte = 0;
  double all_gathered_byte = 0, reduce_scattered_byte = 0;  // of TP
  double exchanged_byte = 0;                                // between experts
  double arrived = 1;                                       // share of the time of what arrives at experts

  [[nodiscard]] double seconds(const Op& op) const {
    if (op.name == OpName::tp_all_gather) return op.bytes * all_gathered_byte;
    if (op.name == OpName::tp_reduce_scatter) return op.bytes * reduce_scattered_byte;
    if (op.name == OpName::ep_all_to_all) return op.bytes * exchanged_byte;
    if (op.stream != Stream::compute) return 0;
    if (op.name == OpName::logits_gemm) return op.flops * logits_flop;
    return op.flops > 0 ? op.flops * (op.arrived ? expert_flop : flop) : op.bytes * byte;
  }

  // Seconds per token of a list that is for `tokens` tokens. `again`: of what a recomputation repeats of it.
  [[nodiscard]] double of_token(const OpList& list, std::int64_t tokens, bool again) const {
    OpList least;
    for (Op op : list.ops()) {
      if (again && op.once) continue;
      op.duration = static_cast<Picoseconds>(seconds(op) * (op.arrived ? arrived : 1) * 1e12 * kScale);
      least.push(op);
    }
    return to_seconds(run_time(least.ops()).total) / kScale / as_double(tokens);
  }
};

// The least of seconds(n) / n over all n that the profile reaches, for times that never fall with n: between
// two sizes no token takes less than the smaller size's time over the larger size. 0 where it reaches none.
template <class Seconds>
double seconds_of_token(const Seconds& seconds) {
  double least = std::numeric_limits<double>::infinity();
  try {
    for (std::int64_t n = 1, next = 0; n < (std::int64_t{1} << 32); n = next) {
      next = n + 1 + n / 64;
      least = std::min(least, seconds(n) / as_double(next - 1));
    }
  } catch (const UserError&) {
    // beyond the profile's range, where nothing runs
  }
  return std::isinf(least) ? 0 : least;
}

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

LeastCosts::Layer LayerCosts::least_of(const std::array<LeastCosts::Layer, kLayerKinds>& layers) const {
  const auto of_any = [&](double LeastCosts::Layer::*seconds) {
    double smallest = std::numeric_limits<double>::infinity();
    for (int k = 0; k < kLayerKinds; ++k)
      if (layer_counts_[at(k)] > 0) smallest = std::min(smallest, layers[at(k)].*seconds);
    return smallest;
  };
  using Layer = LeastCosts::Layer;
  return {of_any(&Layer::forward_token), of_any(&Layer::backward_token), of_any(&Layer::again_token),
          of_any(&Layer::forward_arrived), of_any(&Layer::backward_arrived)};
}

LeastCosts LayerCosts::least() const {
  LeastCosts least;
  LeastRates rates;
  rates.flop = gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  rates.expert_flop = (expert_gemm_ ? *expert_gemm_ : gemm_).least_seconds_per_flop() *
                      framework_.gemm_slowdown * framework_.expert_gemm_slowdown;
  if (model_.training.lora_dim > 0)
    rates.expert_flop = std::min(rates.expert_flop, rates.flop);  // adapters of experts are dense products
  rates.logits_flop = logits_gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  // Under DualPipe the ops of another micro-batch hide an exchange; DeepEP's has no such rate yet.
  if (layout_.expert > 1 && framework_.expert_dispatcher == ExpertDispatcher::all_to_all &&
      framework_.expert_overlap != ExpertOverlap::dualpipe)
    rates.exchanged_byte =
        collectives_.least_seconds_per_byte(Collective::all_to_all, grid_.shape(Axis::expert));
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
  const AttentionModel::Least attention_forward = attention_.least_forward();
  const AttentionModel::Least attention_backward = attention_.least_backward();
  const double slow = framework_.attention_slowdown;
  try {
    for (int k = 0; k < kLayerKinds; ++k) {
      if (layer_counts_[at(k)] == 0) continue;
      const auto kind = static_cast<LayerKind>(k);
      const bool shared = is_moe(kind) && layout_.expert > 1;
      // Tokens of experts are rounded up to the same number each, by less than one for each expert of a rank,
      // and the busiest rank has more than its part.
      rates.arrived =
          is_moe(kind) ? (1 - most_rounding(tokens)) / std::max(1.0, framework_.expert_imbalance) : 1;
      const auto of_token = [&](auto&& make_ops, bool repeated = false) {
        const auto seconds = [&](std::int64_t n) {
          make_ops(n);
          return rates.of_token(before, tokens, repeated) + rates.of_token(after, tokens, repeated);
        };
        const double once = seconds(tokens);
        // Copies of weights cost the same with any number of tokens.
        return torch_layers() && !model_.moe ? seconds(2 * tokens) - once : once;
      };
      const auto forward_of = [&](auto... arrived) {
        return of_token([&](std::int64_t n) { forward_ops(kind, n, arrived..., before, after, unused); });
      };
      const auto backward_of = [&](auto... arrived) {
        return of_token([&](std::int64_t n) { backward_ops(kind, n, arrived..., before, after, unused); });
      };
      const double forward = forward_of(), backward = backward_of();
      const double own_forward = shared ? forward_of(ExpertArrivals{}) : forward;
      const double own_backward = shared ? backward_of(ExpertArrivals{}) : backward;
      const double again =
          of_token([&](std::int64_t n) { forward_ops(kind, n, before, after, unused); }, true);
      LeastCosts::Layer& layer = least.layers[at(k)];
      layer.forward_token = own_forward + slow * attention_forward.per_query;
      layer.backward_token = own_backward + slow * attention_backward.per_query;
      layer.again_token = std::min(again, own_forward) + slow * attention_forward.per_query;
      layer.forward_arrived = std::max(0.0, forward - own_forward);
      layer.backward_arrived = std::max(0.0, backward - own_backward);
    }
    head_backward_ops(tokens, before, unused);
    least.head_token = rates.of_token(before, tokens, false);
    head_forward_ops(tokens, before, unused);
    rates.reduce_scattered_byte = 0;  // there it is an all-reduce
    least.head_token += rates.of_token(before, tokens, false);
  } catch (const UserError&) {
    least = {};  // a profile that does not reach so far
  }
  least.layer = least_of(least.layers);
  least.forward_pair = slow * attention_forward.per_pair;
  least.backward_pair = slow * attention_backward.per_pair;
  return least;
}

double LayerCosts::seconds_of(const CountedPass& pass, std::int64_t tokens,
                              const ExpertArrivals& arriving) const {
  RangeUse unused;
  OpList before, after;
  if (pass.backward)
    backward_ops(pass.kind, tokens, arriving, before, after, unused);
  else
    forward_ops(pass.kind, tokens, arriving, before, after, unused);
  Picoseconds sum = 0;
  for (const OpList* const list : {&before, &after}) {
    OpList counted;
    for (Op op : list->ops()) {
      if (!(op.arrived ? pass.arrived : pass.own) || (pass.again && op.once)) op.duration = 0;
      counted.push(op);
    }
    sum += run_time(counted.ops()).total;
  }
  return to_seconds(sum);
}

LeastCosts::Layer LayerCosts::least_of_sizes(LayerKind kind, LeastCosts::Layer layer) const {
  const bool shared = is_moe(kind) && layout_.expert > 1;  // experts work for what arrives from all ranks
  const double forward_query = framework_.attention_slowdown * attention_.least_forward().per_query;
  const double backward_query = framework_.attention_slowdown * attention_.least_backward().per_query;
  const auto of_token = [&](const CountedPass& pass, bool arrives) {
    return seconds_of_token(
        [&](std::int64_t n) { return seconds_of(pass, n, arrives ? sent_to_experts(n) : ExpertArrivals{}); });
  };
  // Without what arrives from other ranks, and with it: parts of lanes that need not be of one size.
  const auto alone = [&](const CountedPass& pass) { return of_token(pass, !shared); };
  const auto together = [&](CountedPass pass) {
    if (!shared) return alone(pass);
    pass.arrived = false;
    const double own = of_token(pass, true);
    pass.arrived = true;
    pass.own = false;
    return own + of_token(pass, true);
  };
  const auto raise = [&](const CountedPass& pass, double query, double& token, double& arrived) {
    const double both = std::max(token + arrived, together(pass) + query);
    token = std::max(token, alone(pass) + query);
    arrived = std::max(0.0, both - token);
  };
  raise({kind}, forward_query, layer.forward_token, layer.forward_arrived);
  raise({.kind = kind, .backward = true}, backward_query, layer.backward_token, layer.backward_arrived);
  // With what arrives, as in the first forward, no more than both parts.
  const CountedPass again{.kind = kind, .again = true};
  layer.again_token = forward_query + std::min(alone(again), together(again) - layer.forward_arrived);
  return layer;
}

LeastCosts LayerCosts::least_of_sizes() const {
  LeastCosts least = this->least();
  const bool hides = framework_.expert_overlap == ExpertOverlap::shared_expert ||
                     framework_.expert_overlap == ExpertOverlap::dualpipe;
  for (int k = 0; k < kLayerKinds; ++k) {
    const auto kind = static_cast<LayerKind>(k);
    if (layer_counts_[at(k)] > 0 && !(is_moe(kind) && layout_.expert > 1 && hides))
      least.layers[at(k)] = least_of_sizes(kind, least.layers[at(k)]);
  }
  least.layer = least_of(least.layers);
  RangeUse unused;
  OpList backward, forward;
  const double head = seconds_of_token([&](std::int64_t n) {
    head_backward_ops(n, backward, unused);
    head_forward_ops(n, forward, unused);
    Picoseconds sum = run_time(backward.ops()).total;
    for (const Op& op : forward.ops())
      if (op.stream == Stream::compute) sum += op.duration;
    return to_seconds(sum);
  });
  least.head_token = std::max(least.head_token, head);
  return least;
}

}  // namespace equipoise
