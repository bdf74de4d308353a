// What follows the last backward: gradient reduction over DP x CP, the optimizer, parameter gathering.
#pragma once

#include <vector>

#include "sim/cost/layer_costs.h"
#include "sim/engine/stage/lane_engine.h"

namespace equipoise {

// A bucket is one layer's gradients (or the embedding's, the head's). All replicas' ranks reduce it together:
// it starts when the last of them has the layer's gradients and the buckets before it are through, so most
// buckets hide under the backward of earlier layers.
class GradientSync {
 public:
  explicit GradientSync(const LayerCosts& costs);

  void begin_step();
  // Notes when a lane's gradients are ready (LaneEngine::grad_ready).
  void add_lane(const std::vector<std::vector<Picoseconds>>& ready);

  struct End {
    Picoseconds step = 0;       // all stages have optimized and gathered
    Picoseconds optimizer = 0;  // slowest stage
    RangeUse use;
  };
  // `pipeline_end`: the last backward of any lane.
  End finish(Picoseconds pipeline_end);

  // Durations of the parts of one stage, for the op engine and tests.
  struct StageParts {
    std::vector<std::vector<Picoseconds>> buckets;  // by local virtual stage, in backward order
    Picoseconds optimizer = 0;
    Picoseconds gather = 0;
  };
  [[nodiscard]] const std::vector<StageParts>& stages() const { return parts_; }
  [[nodiscard]] bool has_replicas() const { return replicas_ > 1; }

 private:
  Op reduce(double elements, GroupShape group, RangeUse& use) const;

  const LayerCosts& costs_;
  int replicas_;
  std::vector<StageParts> parts_;                    // by pipeline stage
  std::vector<std::vector<Picoseconds>> ready_;      // by virtual stage, then bucket
  std::vector<std::pair<Picoseconds, Picoseconds>> order_;
  RangeUse use_;
};

}  // namespace equipoise
