#include "sim/step/step_result.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace equipoise {

void GpuCompute::begin_step(const Step& step, const Layout& layout, int tensor) {
  replicas_ = static_cast<std::size_t>(layout.data) * static_cast<std::size_t>(layout.context);
  tensor_ = static_cast<std::size_t>(tensor);
  first_.clear();
  taken_.clear();
  for (const Lane& lane : step.lanes) {
    const auto group = static_cast<std::size_t>(lane.barrier_group);
    if (group >= taken_.size()) taken_.resize(group + 1, 0);
    first_.push_back(taken_[group]);
    taken_[group] += static_cast<std::size_t>(lane.context);
    assert(taken_[group] <= replicas_);
  }
  seconds_.assign(static_cast<std::size_t>(layout.pipeline) * replicas_ * tensor_, 0);
}

GpuSpread GpuCompute::spread() const {
  if (seconds_.empty()) return {};
  const auto [least, most] = std::minmax_element(seconds_.begin(), seconds_.end());
  return {*most,
          std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / static_cast<double>(seconds_.size()),
          *least};
}

}  // namespace equipoise
