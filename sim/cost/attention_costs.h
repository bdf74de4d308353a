// The price of attention calls of a layer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "profiler/profile/attention.h"
#include "sim/cost/cost_basis.h"
#include "sim/cost/sparse_attention.h"
#include "sim/workload/ops.h"

namespace equipoise {

// Heads of one attention call when so many TP ranks, and CP ranks in each, share them.
AttentionHeads attention_heads(const ModelShape& model, int tensor, int head_shares);

struct AttentionTimes {
  Picoseconds forward = 0, backward = 0;
};

class AttentionCosts {
 public:
  explicit AttentionCosts(const CostBasis& basis);

  // Attention of one layer over the pieces of one rank. `window` is the number of keys that a query sees;
  // with 0 it sees all up to its own, or the layer's indexer does and chooses among them.
  [[nodiscard]] Op forward(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window = 0) const;
  [[nodiscard]] Op backward(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window = 0) const;
  // The times of both passes of a call, without an op and counted once, for hot loops. `head_shares` is the
  // number of ranks that share the heads.
  [[nodiscard]] AttentionTimes times(std::span<const QueryKeys> pieces, RangeUse& use,
                                     std::int64_t window = 0, int head_shares = 1) const;
  [[nodiscard]] Picoseconds forward_time(std::span<const QueryKeys> pieces, RangeUse& use,
                                         std::int64_t window = 0) const;
  // Whether times follow from counts alone, so that a counted call can be priced again.
  [[nodiscard]] bool prices_counts() const { return !sparse_ && attention_.prices_counts(); }
  [[nodiscard]] AttentionTimes times(const AttentionCall& call, RangeUse& use, int head_shares = 1) const;
  [[nodiscard]] Picoseconds forward_time(const AttentionCall& call, RangeUse& use) const;

  [[nodiscard]] std::int64_t window_of(Mixer mixer) const {
    return mixer == Mixer::window ? basis_.model.reach().window : 0;
  }
  // Matrix FLOPs of one layer's attention on one TP rank, over so many query-key pairs that it attends to,
  // and so many that its indexer scores. A backward has five products where the forward has two.
  [[nodiscard]] double forward_flops(double pairs, double scored = 0) const {
    if (sparse_) return sparse_->forward_flops({scored, pairs});
    const ModelShape& m = basis_.model;
    return 2.0 * (m.head_dim + m.value_dim()) * (m.heads / basis_.layout.tensor) * pairs;
  }
  [[nodiscard]] double backward_flops(double pairs, double scored = 0) const {
    return sparse_ ? sparse_->backward_flops({scored, pairs}) : 2.5 * forward_flops(pairs);
  }
  // The least time of a call per query and per visible (or chosen) pair, forward and backward.
  [[nodiscard]] AttentionModel::Least least_forward() const;
  [[nodiscard]] AttentionModel::Least least_backward() const;

 private:
  [[nodiscard]] const AttentionModel& attention_of(int head_shares) const {
    return head_shares > 1 ? shared_attention_.at(head_shares) : attention_;
  }

  [[nodiscard]] double forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window,
                                       int head_shares) const;
  [[nodiscard]] double backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use, std::int64_t window,
                                        int head_shares) const;

  const CostBasis& basis_;
  double slowdown_;
  AttentionModel attention_;
  std::map<int, AttentionModel> shared_attention_;  // by the number of ranks that share the heads
  std::optional<SparseAttention> sparse_;           // of a model with an indexer, in place of the others
};

}  // namespace equipoise
