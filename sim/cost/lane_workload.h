// The costs by which policies decide that pack by what steps take: whole micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "policies/workload.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/cost/policy_costs.h"

namespace equipoise {

// W(d), and whole micro-batches under a sharding rule, for policies that pack by what steps take.
class LaneWorkload final : public ProfiledWorkload {
 public:
  LaneWorkload(const LayerCosts& costs, std::int64_t window, const ShardRule& rule);
  [[nodiscard]] PassTimes of_micro_batch(const MicroBatch& micro_batch, int degree) const override;
  // The experts' work: half of a window's tokens arrive less than a rank of it sends.
  [[nodiscard]] PassTimes shared_per_token(int degree) const override;

 private:
  [[nodiscard]] MicroBatchCoster& coster() const;

  const LayerCosts& costs_;
  std::int64_t window_;
  ShardRule rule_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<MicroBatchCoster> coster_;  // once it is asked
  mutable MicroBatchCost cost_;
};

}  // namespace equipoise
