// What a rank executes in the FFN of a mixture-of-experts layer, and what arrives there.
#include "sim/cost/experts.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/random.h"
#include "profiler/profile/collective.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

// Loads of less are even to a millionth; the shapes of far less are infinite.
constexpr double kLeastSkew = 1e-6;

// In (0, 1).
double uniform(SplitMix64& random) {
  return (as_double(random.next() >> 11) + 0.5) * 0x1p-53;
}

double normal(SplitMix64& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// Of mean `shape` and variance `shape` (Marsaglia and Tsang, 2000). Below a shape of 1, one of shape + 1
// times a power of a uniform number.
double gamma(double shape, SplitMix64& random) {
  if (shape < 1) return gamma(shape + 1, random) * std::pow(uniform(random), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform(random)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

// Elements that sorting tokens by expert moves, of each copy and of each token, and bringing them back.
struct Moved {
  double of_copy, of_token;
};
// One kernel reads tokens and writes copies, or the other way round.
constexpr Moved kFusedPermute{1, 1};
// A kernel for each step, as Megatron Core's permute and unpermute do without moe_permute_fusion
// (megatron/core/transformer/moe/moe_utils.py). Forward: index_select reads and writes every copy; back comes
// the product with the probabilities (read, written) and scatter_add into zeros (read, and what it adds to
// read and written). Backward: the gradient of scatter_add is gathered, that of the product is another
// product, that of the probabilities a product and its sum; then index_add, as scatter_add above.
constexpr Moved kSort{2, 0}, kBring{5, 1}, kBringGradient{2 + 2 + 4, 0}, kSortGradient{3, 1};

// The all-to-all buffer of which as much leaves the node, or, within one, the rank.
double equivalent_buffer(const ExchangeLoad& load, GroupShape group) {
  const double ranks = group.ranks;
  if (load.network_bytes > 0) return load.network_bytes * ranks / (ranks - group.ranks_per_node);
  return load.node_bytes * ranks / (ranks - 1);
}

}  // namespace

double expert_load(std::span<const MicroBatch* const> together, RouterSkew skew, int ranks,
                   int experts_of_rank) {
  const auto holds_none = [](const MicroBatch* micro_batch) { return micro_batch->tokens() == 0; };
  if (skew.skew < kLeastSkew || ranks < 2 || std::ranges::all_of(together, holds_none)) return 1;
  const double shape = experts_of_rank / (skew.skew * skew.skew);  // of a rank's experts together
  std::vector<double> load(at(ranks), 0);
  for (const MicroBatch* const micro_batch : together)
    for (const Slice& slice : micro_batch->slices) {
      SplitMix64 random(SplitMix64(skew.seed).next() ^
                        SplitMix64(static_cast<std::uint64_t>(slice.document)).next());
      for (double& of_rank : load) of_rank += as_double(slice.tokens()) * gamma(shape, random) / shape;
    }
  const double sum = sum_of(load);
  return std::max(1.0, *std::max_element(load.begin(), load.end()) * ranks / sum);
}

double router_spread(ExpertRouter router) {
  switch (router) {
    case ExpertRouter::stated:
      return 0;
    case ExpertRouter::loss_free:
      return 0.017;
    case ExpertRouter::auxiliary_loss:
      return 0.23;
    case ExpertRouter::unbalanced:
      return 0.59;
  }
  return 0;
}

double router_load(double spread, std::uint64_t seed, int ranks, int experts_of_rank) {
  if (spread < kLeastSkew || ranks < 2) return 1;
  constexpr int kLayers = 1000;  // the mean of their maxima is then known within a hundredth of the spread
  const double shape = experts_of_rank / (spread * spread);
  SplitMix64 random(seed);
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    double all = 0, most = 0;
    for (int r = 0; r < ranks; ++r) {
      const double load = gamma(shape, random);
      all += load;
      most = std::max(most, load);
    }
    sum += most * ranks / all;
  }
  return sum / kLayers;
}

Op expert_exchange(const ExpertGroup& group, double tokens, double load, ExchangeWay way, RangeUse& use) {
  Op op{OpName::ep_all_to_all, Stream::ep};
  const MoeShape& moe = *group.model.moe;
  const bool narrow = way == ExchangeWay::to_experts && group.framework.dispatch_bytes > 0;
  const double element_bytes = narrow ? group.framework.dispatch_bytes : group.element_bytes;
  const double bytes = element_bytes * tokens * as_double(group.model.hidden) * load;
  if (group.framework.expert_dispatcher == ExpertDispatcher::all_to_all) {
    op.bytes = bytes * moe.active;
    op.duration =
        to_picoseconds(group.collectives.seconds(Collective::all_to_all, op.bytes, group.ranks, use));
    return op;
  }
  // Groups of experts are the router's, or, where a study says so, the nodes.
  ExpertRouting routing{moe.experts, moe.active, group.ranks, moe.groups, moe.groups_of_token};
  if (group.framework.expert_nodes > 0) {
    routing.groups = static_cast<int>(nodes_of(group.ranks));
    routing.chosen = group.framework.expert_nodes;
  }
  const RoutedToken token = routed_token(routing);
  const ExchangeLoad traffic = forwarded_load(token, group.ranks, bytes);
  op.bytes = equivalent_buffer(traffic, group.ranks);
  op.duration = to_picoseconds(group.collectives.forwarded_seconds(traffic, group.ranks, use));
  return op;
}

// ---- The ops of a layer ----

Op LayerCosts::grouped_gemm(const GemmModel& model, OpName name, GemmRole role, std::int64_t groups,
                            std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use,
                            double output_bytes) const {
  Op op{name, Stream::compute};
  op.duration =
      to_picoseconds(model.seconds(m, n, k, use, role, groups, output_bytes) * framework_.gemm_slowdown);
  op.flops = 2.0 * as_double(groups) * as_double(m) * as_double(n) * as_double(k);
  op.bytes = element_bytes_ * as_double(groups) *
             (as_double(m) * as_double(k) + as_double(k) * as_double(n) + as_double(m) * as_double(n));
  return op;
}

// One product of every expert that this rank holds. Weight gradients are added to those of the micro-batches
// before: with few rows an expert, reading and writing them is what they wait for. (A dense layer's are, too,
// but under its many rows; what is left of that is in the fitted slowdowns.)
Op LayerCosts::expert_products(OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k,
                               RangeUse& use) const {
  const std::int64_t local = model_.moe->experts / layout_.expert;
  const double output_bytes =
      role == GemmRole::weight_gradient ? 2 * framework_.gradient_bytes : element_bytes_;
  Op op = grouped_gemm(expert_gemm_ ? *expert_gemm_ : gemm_, name, role, local, m, n, k, use, output_bytes);
  const std::int64_t together = expert_gemm_ ? 0 : std::min<std::int64_t>(local, framework_.expert_streams);
  if (together > 0) {
    const auto of = [&](std::int64_t groups) {
      return groups > 0 ? grouped_gemm(gemm_, name, role, groups, m, n, k, use, output_bytes).duration : 0;
    };
    op.duration = local / together * of(together) + of(local % together);
    op.launches = static_cast<std::uint32_t>(local);
  }
  // A grouped kernel is one launch for all; what the framework takes for each product does not occur.
  const double each = expert_gemm_ ? 0 : framework_.expert_product_seconds;
  op.duration =
      to_picoseconds(to_seconds(op.duration) * framework_.expert_gemm_slowdown + as_double(local) * each);
  return op;
}

// The products of the experts that the busiest rank holds, for the `routed` token copies that arrive there:
// a group an expert, each with weights and tiles of its own.
void LayerCosts::push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *model_.moe;
  const std::int64_t local = moe.experts / layout_.expert;
  const std::int64_t rows = (routed + local - 1) / local;  // of one expert
  const std::int64_t f = moe.expert_ffn / layout_.expert_tensor_size();
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = model_.hidden;
  const auto product = [&](OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k) {
    ops.push(expert_products(name, role, m, n, k, use));
  };
  const auto adapter = [&](std::int64_t out, std::int64_t in, bool column) {
    return AdaptedLayer{routed, rows, out, in, local, column, layout_.expert_tensor_size(),
                        grid_.expert_tensor_shape(), true};
  };
  const auto adapt = [&](WeightKind weights, std::int64_t out, std::int64_t in, bool column) {
    if (model_.training.adapts(weights)) push_adapter(adapter(out, in, column), OpName::expert_gemm, ops, use);
  };
  const auto activate = [&](ElementwisePass pass) { ops.push(activation(routed, f, pass, use)); };
  if (!backward) {
    push_quantize(WeightKind::fc1, routed, h, ops, use);
    product(OpName::expert_gemm, GemmRole::forward, rows, up, h);
    adapt(WeightKind::fc1, up, h, true);
    activate(ElementwisePass::forward);
    push_quantize(WeightKind::fc2, routed, f, ops, use);
    product(OpName::expert_gemm, GemmRole::forward, rows, h, f);
    adapt(WeightKind::fc2, h, f, false);
    return;
  }
  const auto gradients = [&](WeightKind weights, std::int64_t out, std::int64_t in) {
    if (model_.training.adapts(weights))
      push_adapter_gradients(adapter(out, in, weights == WeightKind::fc1), ops, use);
    push_quantize(weights, routed, out, ops, use);
    product(OpName::expert_gemm, GemmRole::input_gradient, rows, in, out);
    if (model_.training.trains(weights))
      product(OpName::weight_gradient, GemmRole::weight_gradient, in, out, rows);
  };
  if (layout_.repeats(RecomputeModule::moe_act) && !layout_.repeats(RecomputeModule::moe)) {
    activate(ElementwisePass::forward);
    ops.mark_again(ops.size() - 1);
  }
  gradients(WeightKind::fc2, h, f);
  activate(ElementwisePass::backward);
  gradients(WeightKind::fc1, up, h);
}

// Copies of rows of h elements, put into or out of the order of experts: so many rows read or written.
void LayerCosts::push_permute(double rows_moved, OpList& ops, RangeUse& use) const {
  ops.push(
      moves(OpName::permute, Elementwise::copy, rows_moved * as_double(model_.hidden) * element_bytes_, use));
}

// Their operands, a number for each token and expert, fit the caches: the launches are what they cost.
Op LayerCosts::routing() const {
  Op op{OpName::routing};
  op.launches = static_cast<std::uint32_t>(framework_.routing_kernels);
  op.duration =
      to_picoseconds(framework_.routing_kernels * launch_seconds_ * framework_.elementwise_slowdown);
  return op;
}

// With compute at 1 - q of its rate while an exchange of time D runs, what would take U under it is done
// after D if U <= (1 - q) D, and else after U + q D: the rest runs on all SMs. So the rank goes on after
// max(D, U + q D), as if a kernel of q D ran there, too. With n of N SMs taken q is n / N where kernels are
// launched for the others; kernels of one block for each SM that are not need ceil(N / (N - n)) waves instead
// of one.
Picoseconds LayerCosts::lost_under(Picoseconds exchange, int exchange_sms, bool told) const {
  const int sms = profile_.device().sms;
  if (exchange_sms == 0 || sms <= 1) return 0;
  const int taken = std::min(exchange_sms, sms - 1);
  const int waves = (sms + sms - taken - 1) / (sms - taken);
  return told ? exchange * taken / sms : exchange * (waves - 1) / waves;
}

Op LayerCosts::taken_sms(Picoseconds exchange) const {
  Op op{OpName::taken_sms, Stream::ep};
  op.launches = 0;
  op.duration = lost_under(exchange, framework_.exchange_sms, framework_.exchange_sm_margin);
  return op;
}

ExpertArrivals LayerCosts::sent_to_experts(std::int64_t n) const {
  const std::int64_t t = layout_.tensor, e = layout_.expert_tensor_size();
  const std::int64_t rows = (n + t - 1) / t;
  return {as_double(e == t ? n : rows * e), as_double(rows)};
}

double LayerCosts::expert_load(std::span<const MicroBatch* const> together) const {
  if (!model_.moe || framework_.expert_capacity_factor > 0) return 1;
  return router_load_ * equipoise::expert_load(together, {framework_.expert_skew, framework_.expert_seed},
                                               layout_.expert, model_.moe->experts / layout_.expert);
}

double LayerCosts::expert_load(const MicroBatch& micro_batch) const {
  if (!model_.moe || framework_.expert_skew == 0) return router_load_;
  const int group = layout_.expert * layout_.expert_tensor_size(), lane = layout_.tensor * layout_.context;
  const int lanes = (group + lane - 1) / lane;  // whose micro-batches take part in the exchange
  return router_load_ * equipoise::expert_load(micro_batch, {framework_.expert_skew, framework_.expert_seed},
                                               layout_.expert, model_.moe->experts / layout_.expert * lanes);
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
void LayerCosts::push_moe(std::int64_t n, bool backward, const ExpertArrivals& from_all, OpList& ops,
                          RangeUse& use) const {
  const MoeShape& moe = *model_.moe;
  const std::int64_t t = layout_.tensor;
  const std::int64_t rows = (n + t - 1) / t;
  const std::int64_t h = model_.hidden;
  const std::int64_t e = layout_.expert_tensor_size();
  const double capacity = framework_.expert_capacity_factor;
  const double padded = capacity > 0 ? capacity : 1;  // what a rank sends of its copies
  const double load = capacity > 0 ? capacity : from_all.load * framework_.expert_imbalance;
  // Copies at the busiest rank; few tokens of a large group are a copy at least.
  const double mean = from_all.tokens * as_double(moe.active);
  const std::int64_t arriving = mean > 0 ? std::max<std::int64_t>(1, std::llround(mean * load)) : 0;
  const bool gets_most = from_all.rows * load >= as_double(rows) * padded;  // of what it sends and what it gets
  const bool exchanges = layout_.expert > 1;
  const bool shared = moe.shared_width() > 0;
  const ExpertOverlap overlap = framework_.expert_overlap;
  const ExpertGroup group{model_, framework_, grid_.shape(Axis::expert), element_bytes_, collectives_};
  const auto exchange_over_shared = [&](ExchangeWay way, bool up) {
    const std::size_t first = ops.size();
    if (!exchanges) return;
    const Op exchange = gets_most ? expert_exchange(group, from_all.rows, load, way, use)
                                  : expert_exchange(group, as_double(rows), padded, way, use);
    ops.push(exchange);
    ops.mark_arrived(first);
    const bool over_shared = shared && overlap == ExpertOverlap::shared_expert;
    if (!over_shared && overlap != ExpertOverlap::dualpipe) return;  // nothing runs under it
    if (const Op taken = taken_sms(exchange.duration); taken.duration > 0) ops.push(taken);
    ops.mark_arrived(first);
    if (over_shared && up) push_ffn_up(n, moe.shared_width(), backward, ops, use);
    if (over_shared && !up) push_ffn_down(n, moe.shared_width(), backward, ops, use);
    ops.put_under(first);
  };
  // A token's copies are written out by destination before NCCL's all-to-all, and summed up after it; where
  // they arrive they are sorted by expert, and back. DeepEP's kernels send from and sum up in place.
  const bool in_place = exchanges && framework_.expert_dispatcher == ExpertDispatcher::deepep;
  const Moved out = framework_.permute_fusion ? kFusedPermute : backward ? kBringGradient : kSort;
  const Moved in = framework_.permute_fusion ? kFusedPermute : backward ? kSortGradient : kBring;
  const auto permute = [&](Moved moved) {
    if (in_place) return;
    push_permute(as_double(rows) * (moved.of_copy * as_double(moe.active) * padded + moved.of_token), ops,
                 use);
  };
  const auto sort = [&](Moved moved) {
    if (!exchanges || moe.experts == layout_.expert || arriving == 0) return;
    const bool unfused = in_place && !framework_.permute_fusion;
    push_permute((unfused ? moved.of_copy : 2) * as_double(arriving), ops, use);
  };
  if (!backward) ops.push(gemm(OpName::router, rows, moe.experts, h, use));
  if (framework_.routing_kernels > 0) ops.push(routing());
  permute(out);
  exchange_over_shared(ExchangeWay::to_experts, !backward);
  const std::size_t first_arrived = ops.size();
  if (e > 1 && arriving > 0) ops.push(expert_collective(OpName::tp_all_gather, arriving, use));
  sort(out);
  if (arriving > 0) push_experts(arriving, backward, ops, use);
  sort(in);
  if (e > 1 && arriving > 0) ops.push(expert_collective(OpName::tp_reduce_scatter, arriving, use));
  ops.mark_arrived(first_arrived);
  const bool beside_routed = exchanges && overlap == ExpertOverlap::dualpipe;
  if (shared && beside_routed) push_dense_ffn(n, moe.shared_width(), backward, ops, use);
  exchange_over_shared(ExchangeWay::back, backward);
  const bool behind = !exchanges || overlap == ExpertOverlap::none || overlap == ExpertOverlap::deepep;
  permute(in);
  if (shared && behind) push_dense_ffn(n, moe.shared_width(), backward, ops, use);
  if (backward) {
    ops.push(gemm(OpName::router, rows, h, moe.experts, use));
    if (model_.training.trains(WeightKind::router)) ops.push(gemm(OpName::router, h, moe.experts, rows, use));
  }
}

}  // namespace equipoise
