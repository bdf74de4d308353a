#include "sim/cost/attention_costs.h"

#include <algorithm>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {

AttentionHeads attention_heads(const ModelShape& m, int tensor, int head_shares) {
  AttentionHeads heads;
  // MLA's Q and K are wider than its V: a kernel's work goes with the mean of the two.
  heads.head_dim = (m.head_dim + m.value_dim()) / 2;
  heads.query_heads = m.heads / tensor / head_shares;
  heads.kv_heads =
      std::max(1, m.kv_heads / tensor / head_shares);  // fewer KV heads than ranks are replicated
  return heads;
}

AttentionCosts::AttentionCosts(const CostBasis& basis)
    : basis_(basis),
      slowdown_(basis.framework.attention_slowdown),
      attention_(basis.profile, attention_heads(basis.model, basis.layout.tensor, 1),
                 basis.framework.attention_kernel) {
  const ModelShape& model = basis.model;
  const Layout& layout = basis.layout;
  const auto add_shared = [&](int context) {
    const int shares = context_form(layout).head_shares(layout, context);
    if (shares > 1)
      shared_attention_.try_emplace(shares, basis.profile, attention_heads(model, layout.tensor, shares),
                                    basis.framework.attention_kernel);
  };
  add_shared(layout.context);  // any divisor of the heads works; policies choose among powers of two
  for (int c = 2; c <= layout.inner_ranks(layout.context); ++c) add_shared(c);
  for (int c = 1; (model.heads / layout.tensor) % c == 0; c *= 2) add_shared(c);
  if (model.indexer) sparse_.emplace(model, layout.tensor, basis.profile.device());
}

// Query-key pairs that causal attention over the pieces computes.
static double visible_pairs(std::span<const QueryKeys> pieces, std::int64_t window) {
  double pairs = 0;
  for (const QueryKeys& p : pieces)
    pairs += window > 0 ? causal_pairs(as_double(p.queries), as_double(p.keys - p.queries), as_double(window))
                        : as_double(p.queries) * (as_double(p.keys) - 0.5 * as_double(p.queries - 1));
  return pairs;
}

static SparseAttention::Pairs sparse_pairs(const IndexerShape& indexer, std::span<const QueryKeys> pieces,
                                           std::int64_t window) {
  return {window == 0 ? visible_pairs(pieces, 0) : 0, visible_pairs(pieces, indexer.top_keys)};
}

static SparseAttention::Pairs pairs_of(const std::optional<IndexerShape>& indexer,
                                       std::span<const QueryKeys> pieces, std::int64_t window) {
  return indexer ? sparse_pairs(*indexer, pieces, window)
                 : SparseAttention::Pairs{0, visible_pairs(pieces, window)};
}

double AttentionCosts::forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window,
                                       int head_shares) const {
  if (sparse_) return sparse_->forward_seconds(sparse_pairs(*basis_.model.indexer, pieces, window));
  return attention_of(head_shares).forward_seconds(pieces, use, window) * slowdown_;
}

double AttentionCosts::backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window,
                                        int head_shares) const {
  if (sparse_) return sparse_->backward_seconds(sparse_pairs(*basis_.model.indexer, pieces, window));
  return attention_of(head_shares).backward_seconds(pieces, use, window) * slowdown_;
}

Picoseconds AttentionCosts::forward_time(const AttentionCall& call, RangeUse& use) const {
  return to_picoseconds(attention_.forward_seconds(call, use) * slowdown_);
}

Picoseconds AttentionCosts::forward_time(std::span<const QueryKeys> pieces, RangeUse& use,
                                         std::int64_t window) const {
  return to_picoseconds(forward_seconds(pieces, use, window, 1));
}

AttentionTimes AttentionCosts::times(const AttentionCall& call, RangeUse& use, int head_shares) const {
  const AttentionModel& model = attention_of(head_shares);
  return {to_picoseconds(model.forward_seconds(call, use) * slowdown_),
          to_picoseconds(model.backward_seconds(call, use) * slowdown_)};
}

AttentionTimes AttentionCosts::times(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window,
                                     int head_shares) const {
  if (prices_counts()) return times(count_call(pieces, window), use, head_shares);
  return {to_picoseconds(forward_seconds(pieces, use, window, head_shares)),
          to_picoseconds(backward_seconds(pieces, use, window, head_shares))};
}

Op AttentionCosts::forward(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window) const {
  Op op{OpName::attention, Stream::compute};
  op.duration = forward_time(pieces, use, window);
  const SparseAttention::Pairs pairs = pairs_of(basis_.model.indexer, pieces, window);
  op.flops = forward_flops(pairs.chosen, pairs.scored);
  return op;
}

Op AttentionCosts::backward(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window) const {
  Op op{OpName::attention, Stream::compute};
  op.duration = to_picoseconds(backward_seconds(pieces, use, window, 1));
  const SparseAttention::Pairs pairs = pairs_of(basis_.model.indexer, pieces, window);
  op.flops = backward_flops(pairs.chosen, pairs.scored);
  return op;
}

static AttentionModel::Least scaled(AttentionModel::Least least, double slowdown) {
  return {slowdown * least.per_query, slowdown * least.per_pair};
}

AttentionModel::Least AttentionCosts::least_forward() const {
  if (sparse_) return {0, sparse_->forward_seconds({0, 1})};
  return scaled(attention_.least_forward(), slowdown_);
}

AttentionModel::Least AttentionCosts::least_backward() const {
  if (sparse_) return {0, sparse_->backward_seconds({0, 1})};
  return scaled(attention_.least_backward(), slowdown_);
}

}  // namespace equipoise
