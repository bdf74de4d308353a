// The cost of whole micro-batches, for policies that pack by the time of steps.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "policies/workload.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/cost/policy_costs.h"

namespace equipoise {

// W(d), and whole micro-batches under a sharding rule, for policies that pack by the time of steps.
class LaneWorkload final : public ProfiledWorkload {
 public:
  LaneWorkload(const LayerCosts& costs, std::int64_t window, const ShardRule& rule);
  [[nodiscard]] PassTimes of_micro_batch(const MicroBatch& micro_batch, int degree) const override;
  // The time per token of the experts' work: what changes if half as many tokens arrive as the rank sends.
  [[nodiscard]] PassTimes shared_per_token(int degree) const override;

 private:
  [[nodiscard]] MicroBatchCoster& coster() const;

  const LayerCosts& costs_;
  std::int64_t window_;
  ShardRule rule_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<MicroBatchCoster> coster_;  // null until it is needed
  mutable MicroBatchCost cost_;
};

}  // namespace equipoise
