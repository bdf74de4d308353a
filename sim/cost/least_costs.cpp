// A list of ops takes no less time with more tokens. So for all sizes between two, the time per token is at
// least the smaller size's time over the larger size. Halving the interval finds the minimum over all sizes.
#include "sim/cost/least_costs.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

struct Sizes {
  std::int64_t first, last;
  double seconds;  // for the first size
  [[nodiscard]] double least() const { return seconds / as_double(last); }
  bool operator<(const Sizes& other) const { return least() > other.least(); }  // puts the smallest on top
};

// The minimum of seconds(n) / n over all n that the profile reaches, to within a factor of `near`. 0 if it
// reaches none.
template <class Seconds>
double seconds_of_token(double near, const Seconds& seconds) {
  std::priority_queue<Sizes> open;
  double seen = std::numeric_limits<double>::infinity();
  const auto look = [&](std::int64_t first, std::int64_t last) {
    try {
      const double of_first = seconds(first);
      open.push({first, last, of_first});
      seen = std::min(seen, of_first / as_double(first));
      return true;
    } catch (const UserError&) {
      return false;  // beyond the profile's range nothing runs
    }
  };
  for (std::int64_t n = 1; n < (std::int64_t{1} << 32) && look(n, 2 * n - 1); n *= 2) {
  }
  while (!open.empty() && open.top().least() < near * seen && open.top().first < open.top().last) {
    const Sizes sizes = open.top();
    open.pop();
    const std::int64_t middle = sizes.first + (sizes.last - sizes.first + 1) / 2;
    open.push({sizes.first, middle - 1, sizes.seconds});
    look(middle, sizes.last);
  }
  return open.empty() ? 0 : open.top().least();
}

// A pass through a layer on a rank, and which of its ops count: those for the rank's own tokens, or those for
// copies that arrived at its experts.
struct CountedPass {
  LayerKind kind;
  bool backward = false, again = false;
  bool own = true, arrived = true, exchanges = true;
};

double seconds_of(const LayerCosts& costs, const CountedPass& pass, std::int64_t tokens,
                  const ExpertArrivals& arriving) {
  RangeUse unused;
  OpList before, after;
  if (pass.backward)
    costs.layers.backward(pass.kind, tokens, arriving, before, after, unused);
  else
    costs.layers.forward(pass.kind, tokens, arriving, before, after, unused);
  if (pass.own && pass.arrived && pass.exchanges && !pass.again)
    return to_seconds(run_time(before.ops()).total + run_time(after.ops()).total);
  Picoseconds sum = 0;
  for (const OpList* const list : {&before, &after}) {
    OpList counted;
    for (Op op : list->ops()) {
      const bool counts = op.arrived ? pass.arrived : pass.own;
      if (!counts || (pass.again && op.once) || (op.stream == Stream::ep && !pass.exchanges)) op.duration = 0;
      counted.push(op);
    }
    sum += run_time(counted.ops()).total;
  }
  return to_seconds(sum);
}

LeastCosts::Layer least_layer(const LayerCosts& costs, LayerKind kind, double near) {
  const bool shared = is_moe(kind) && costs.layout().expert > 1;  // experts also work for other ranks' tokens
  const ExpertOverlap overlap = costs.framework().expert_overlap;
  const auto of_token = [&](const CountedPass& pass, bool arrives) {
    return seconds_of_token(near, [&](std::int64_t n) {
      return seconds_of(costs, pass, n, arrives ? costs.experts.sent_to_experts(n) : ExpertArrivals{});
    });
  };
  // First without what arrives from other ranks, whose exchange another micro-batch may hide; then with it,
  // in two parts, since lanes may differ in size.
  const auto alone = [&](CountedPass pass) {
    pass.exchanges = overlap != ExpertOverlap::dualpipe;
    return of_token(pass, !shared);
  };
  const auto together = [&](CountedPass pass) {
    pass.exchanges = overlap == ExpertOverlap::none || overlap == ExpertOverlap::deepep;
    pass.arrived = false;
    const double own = of_token(pass, true);
    pass.arrived = true;
    pass.own = false;
    return own + of_token(pass, true);
  };
  const CountedPass forward{kind}, backward{.kind = kind, .backward = true},
      again{.kind = kind, .again = true};
  LeastCosts::Layer layer;
  layer.forward_token = alone(forward);
  layer.backward_token = alone(backward);
  layer.again_token = alone(again);
  if (shared) {
    layer.forward_arrived = std::max(0.0, together(forward) - layer.forward_token);
    layer.backward_arrived = std::max(0.0, together(backward) - layer.backward_token);
    // With arrivals, as in the first forward, the bound is at most the sum of both parts.
    layer.again_token = std::min(layer.again_token, together(again) - layer.forward_arrived);
  }
  constexpr double kTokens = 1 << 20;  // any number works, since a recurrence's time is proportional to it
  const auto add_mixer = [&](double forward_seconds, double backward_seconds) {
    layer.forward_token += forward_seconds;
    layer.again_token += forward_seconds;
    layer.backward_token += backward_seconds;
  };
  if (attends(mixer_of(kind)))
    add_mixer(costs.attention.least_forward().per_query, costs.attention.least_backward().per_query);
  if (recurs(mixer_of(kind))) {
    const AttentionTimes recurrence = costs.recurrence.times(kTokens);
    add_mixer(to_seconds(recurrence.forward) / kTokens, to_seconds(recurrence.backward) / kTokens);
  }
  return layer;
}

}  // namespace

LeastCosts least_costs(const LayerCosts& costs, double near) {
  LeastCosts least;
  using Layer = LeastCosts::Layer;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  least.layer = {kNone, kNone, kNone, kNone, kNone};
  for (int k = 0; k < kLayerKinds; ++k) {
    if (costs.layer_counts()[at(k)] == 0) continue;
    least.layers[at(k)] = least_layer(costs, static_cast<LayerKind>(k), near);
    for (const auto part : {&Layer::forward_token, &Layer::backward_token, &Layer::again_token,
                            &Layer::forward_arrived, &Layer::backward_arrived})
      least.layer.*part = std::min(least.layer.*part, least.layers[at(k)].*part);
  }
  least.forward_pair = costs.attention.least_forward().per_pair;
  least.backward_pair = costs.attention.least_backward().per_pair;
  RangeUse unused;
  OpList backward, forward;
  least.head_token = seconds_of_token(near, [&](std::int64_t n) {
    costs.ends.head_backward(n, backward, unused);
    costs.ends.head_forward(n, forward, unused);
    Picoseconds sum = run_time(backward.ops()).total;
    for (const Op& op : forward.ops())
      if (op.stream == Stream::compute) sum += op.duration;
    return to_seconds(sum);
  });
  return least;
}

static std::string local_ops_follow_from(const LayerCosts& costs) {
  const Layout& l = costs.layout();
  std::string key =
      concatenated(l.tensor, ' ', l.expert, ' ', l.expert_tensor, ' ', name_of(l.precision), ' ', l.zero, ' ',
                   l.reduces_each_micro_batch(), ' ', costs.basis.torch_ring());
  for (const GroupShape& shape : {costs.grid().shape(Axis::tensor), costs.grid().shape(Axis::expert),
                                  costs.grid().expert_tensor_shape()})
    key += concatenated(' ', shape.ranks, '/', shape.ranks_per_node);
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    key += l.repeats(static_cast<RecomputeModule>(m)) ? '+' : '-';
  return key;
}

const LeastCosts& SharedLeastCosts::of(const LayerCosts& costs) {
  const std::lock_guard lock(mutex_);
  const std::string key = local_ops_follow_from(costs);
  const auto known = known_.find(key);
  return known != known_.end() ? known->second : known_.emplace(key, least_costs(costs, near_)).first->second;
}

}  // namespace equipoise
