#include "sim/step/gpu_compute.h"

#include <algorithm>
#include <cassert>

namespace equipoise {

void GpuCompute::begin_step(const Step& step, const Layout& layout, int tensor) {
  replicas_ = at(layout.data) * at(layout.context);
  tensor_ = at(tensor);
  first_.clear();
  taken_.clear();
  for (const Lane& lane : step.lanes) {
    const auto group = at(lane.barrier_group);
    if (group >= taken_.size()) taken_.resize(group + 1, 0);
    first_.push_back(taken_[group]);
    taken_[group] += at(lane.context);
    assert(taken_[group] <= replicas_);
  }
  seconds_.assign(at(layout.pipeline) * replicas_ * tensor_, 0);
}

GpuSpread GpuCompute::spread() const {
  if (seconds_.empty()) return {};
  const auto [least, most] = std::minmax_element(seconds_.begin(), seconds_.end());
  return {*most, sum_of(seconds_) / static_cast<double>(seconds_.size()), *least};
}

}  // namespace equipoise
