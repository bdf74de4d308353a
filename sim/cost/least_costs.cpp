// What no plan can beat: the products of a layer at the rate of the fastest tile, attention by visible pairs,
// K and V at the rate of the links. Row ops, latencies, waves and TP communication only add to it.

#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

double as_double(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

LeastCosts LayerCosts::least() const {
  const std::int64_t t = layout_.tensor;
  const double h = as_double(model_.hidden);
  double flops = 2 * h * as_double(std::int64_t{model_.heads} * model_.value_dim() / t);  // output
  if (!model_.mla)
    flops += 2 * h *
             as_double(std::int64_t{model_.heads} / t * model_.head_dim +
                       2 * std::max<std::int64_t>(1, model_.kv_heads / t) * model_.head_dim);
  // How many tokens an expert gets is not known before they are routed.
  if (!model_.moe) flops += (model_.gated_ffn ? 6 : 4) * h * as_double(model_.ffn / t);
  const double layer = flops * gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  const AttentionModel::Least forward = attention_.least_forward();
  const AttentionModel::Least backward = attention_.least_backward();
  const double slow = framework_.attention_slowdown;
  LeastCosts least;
  least.forward_token = layer + slow * forward.per_query;
  least.forward_pair = slow * forward.per_pair;
  least.backward_token = 2 * layer + slow * backward.per_query;
  least.backward_pair = slow * backward.per_pair;
  least.head_token = 3 * 2 * h * as_double((model_.vocab + t - 1) / t) *
                     logits_gemm_.least_seconds_per_flop() * framework_.gemm_slowdown;
  return least;
}

double LayerCosts::least_exchange_seconds(int context) const {
  if (context <= 1) return 0;
  const GroupShape group = grid_.context_shape(context);
  const auto rate = [&](Collective kind) { return collectives_.least_seconds_per_byte(kind, group); };
  if (layout_.context_comm == ContextComm::all_gather)  // K and V once more in the backward, their gradients
    return as_double(kv_bytes_per_token_) *
           (2 * rate(Collective::all_gather) + rate(Collective::reduce_scatter));
  if (layout_.context_comm == ContextComm::ring) return 0;  // under attention
  RangeUse use;
  constexpr std::int64_t kTokens = 1 << 10;  // bytes are proportional to them
  const double bytes = ulysses_exchange(kTokens, context, false, use).bytes +
                       ulysses_exchange(kTokens, context, true, use).bytes;
  // There and back, forward and backward; the fullest rank has at least its share of the tokens.
  return 2 * bytes / kTokens / context * rate(Collective::all_to_all);
}

}  // namespace equipoise
