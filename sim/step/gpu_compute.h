// Compute seconds (or those of attention alone) of every GPU in a step.
//
// Lanes take the stage's data x context ranks in plan order, as many as their CP degree; lanes of a later
// barrier group start over on the same GPUs, whose times then add up. GPUs that no lane takes computed
// nothing. O(lanes) to begin a step, O(1) an addition.
#pragma once

#include <cstddef>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/step/step_result.h"
#include "sim/workload/layout.h"

namespace equipoise {

class GpuCompute {
 public:
  // `tensor`: TP ranks with times of their own; 1 where they all do the same.
  void begin_step(const Step& step, const Layout& layout, int tensor);

  // `rank` is the place among the lane's context x tensor ranks on that stage, TP innermost.
  void add(std::size_t lane, int stage, std::size_t rank, double seconds) {
    seconds_[(at(stage) * replicas_ + first_[lane]) * tensor_ + rank] += seconds;
  }

  [[nodiscard]] GpuSpread spread() const;
  // [(stage * replicas + replica) * tensor + TP rank]
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  std::vector<double> seconds_;
  std::vector<std::size_t> first_;  // replica of each lane's first CP rank
  std::vector<std::size_t> taken_;  // replicas in use, by barrier group
  std::size_t replicas_ = 1;        // data x context
  std::size_t tensor_ = 1;
};

}  // namespace equipoise
