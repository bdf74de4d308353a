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

  // ZeRO-3: gradients were reduced and parameters are gathered with every micro-batch; only the optimizer is
  // left.
  End finish_sharded(Picoseconds pipeline_end) const;
  // Gathering one layer's parameters, and reducing its gradients (the last layer's: all are alike but the
  // ends).
  [[nodiscard]] Picoseconds layer_gather() const { return layer_gather_.duration; }
  [[nodiscard]] Picoseconds layer_reduce() const { return layer_reduce_.duration; }
  [[nodiscard]] const Op& layer_gather_op() const { return layer_gather_; }
  [[nodiscard]] const Op& layer_reduce_op() const { return layer_reduce_; }

  // Durations of the parts of one stage, for the op engine and tests.
  struct StageParts {
    std::vector<std::vector<Picoseconds>> buckets;  // by local virtual stage, in backward order
    std::vector<std::vector<double>> bucket_bytes;  // of their reductions
    Picoseconds optimizer = 0;
    Picoseconds gather = 0;
    double gather_bytes = 0;
  };
  [[nodiscard]] const std::vector<StageParts>& stages() const { return parts_; }
  [[nodiscard]] bool has_replicas() const { return replicas_ > 1; }

 private:
  // Parameters that a rank holds of something: those that all data x context ranks have alike, and those of
  // its routed experts, which only the ranks of equal expert coordinate have.
  struct Held {
    double dense = 0;
    double experts = 0;
  };
  Op reduce(const Held& held);
  Op gather(const Held& held);
  // One over each of the two groups, one after the other.
  Op collective(OpName name, Collective kind, const Held& held, double bytes_each);

  const LayerCosts& costs_;
  int replicas_;
  std::vector<StageParts> parts_;                // by pipeline stage
  std::vector<std::vector<Picoseconds>> ready_;  // by virtual stage, then bucket
  std::vector<std::pair<Picoseconds, Picoseconds>> order_;
  Op layer_gather_{OpName::dp_all_gather, Stream::dp};
  Op layer_reduce_{OpName::dp_reduce, Stream::dp};
  RangeUse use_;
};

}  // namespace equipoise
