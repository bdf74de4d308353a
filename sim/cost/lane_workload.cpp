#include "sim/cost/lane_workload.h"

#include <vector>

#include "policies/base/index.h"

namespace equipoise {

LaneWorkload::LaneWorkload(const LayerCosts& costs, std::int64_t window, const ShardRule& rule)
    : ProfiledWorkload(costs, window), costs_(costs), window_(window), rule_(rule) {
  rule_.options.workload = this;
}

MicroBatchCoster& LaneWorkload::coster() const {
  if (!coster_) coster_ = std::make_unique<MicroBatchCoster>(costs_, rule_);
  return *coster_;
}

PassTimes LaneWorkload::of_micro_batch(const MicroBatch& micro_batch, int degree) const {
  const std::lock_guard lock(mutex_);
  coster().cost(micro_batch, degree, cost_);
  const MicroBatchCoster::ModelTimes times = coster().model_times(micro_batch, cost_);
  return {to_seconds(times.forward), to_seconds(times.both - times.forward)};
}

PassTimes LaneWorkload::shared_per_token(int degree) const {
  if (!costs_.model().moe || costs_.layout().expert == 1) return {};
  const std::lock_guard lock(mutex_);
  MicroBatch whole;
  whole.slices = {{0, 0, window_}};
  coster().cost(whole, degree, cost_);
  const MicroBatchCoster::ModelTimes all = coster().model_times(whole, cost_);
  std::vector<ExpertArrivals> arriving = cost_.arriving;
  for (ExpertArrivals& at_rank : arriving) at_rank.tokens /= 2, at_rank.rows /= 2;
  coster().cost_sharded(whole, degree, arriving, {}, cost_);
  const MicroBatchCoster::ModelTimes half = coster().model_times(whole, cost_);
  const double tokens = as_double(window_) / 2;
  return {to_seconds(all.forward - half.forward) / tokens,
          to_seconds(all.both - all.forward - (half.both - half.forward)) / tokens};
}

}  // namespace equipoise
