// What the end of a step costs: gradient reduction over DP x CP, the optimizer, parameter gathering.
//
// Micro-batches add to their rank's gradients, which are reduced once per step, under the last backward of
// their layer. Where a rank keeps a shard of the sum and nothing else between micro-batches (ZeRO-3; ZeRO-2
// as DeepSpeed runs it, Layout::reduce_each_micro_batch), they are reduced with every backward instead: each
// layer's under the layers before it, the rest before the stage's next op. The last backward of a step has no
// next op: with ZeRO-2 its reductions hold up only the optimizer, like ZeRO-1's.
//
// With FrameworkOptions::overlap_grad_reduce off, ZeRO-0 and 1 reduce nothing under the backward: their
// buckets take no time, and the steps at the end begin with a reduction of all that a rank holds. So does
// ZeRO-1 with scatter_gradients off, by an all-reduce.
//
// In a bidirectional pipeline each layer has a copy on the opposite rank, which half of the micro-batches
// went through. Both are reduced over their own stage's replicas as any other; then the two ranks add up what
// each of them holds of the sums (ZeRO-1: a shard, of which each keeps half; ZeRO-0: all), and update that.
// Both hold the same layers and take equally long, so that a stage need not be told when the other begins:
// the later of the two ends the step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"
#include "sim/step/part_order.h"
#include "sim/step/stage_end.h"

namespace equipoise {

// Prices the end of a step on every stage, and says when it ends at layer resolution.
class GradientSync {
 public:
  explicit GradientSync(const LayerCosts& costs);

  void begin_step();
  // Records when a lane's gradients are ready and its stages have ended (LaneEngine::grad_ready, stage_ends).
  void add_lane(const std::vector<std::vector<Picoseconds>>& ready,
                const std::vector<Picoseconds>& stage_ends);

  struct End {
    Picoseconds step = 0;       // all stages have optimized and gathered
    Picoseconds optimizer = 0;  // slowest stage
    RangeUse use;
  };
  // `pipeline_end` is when the last op of any lane ended.
  End finish(Picoseconds pipeline_end);

  // The op that gathers the parameters of a part, and the one that reduces its gradients.
  [[nodiscard]] const Op& gather_of(ModelPart part) const { return gather_[at(part)]; }
  [[nodiscard]] const Op& reduce_of(ModelPart part) const { return reduce_[at(part)]; }
  // Whether lanes reduce gradients, and whether they gather parameters, with every micro-batch.
  [[nodiscard]] bool reduces_each_micro_batch() const {
    return equipoise::reduces_each_micro_batch(costs_.layout());
  }
  [[nodiscard]] bool shards_parameters() const { return gathers_each_micro_batch(costs_.layout()); }
  // Whether the last backward of a virtual stage fills buckets. With ZeRO-2 only a stage's first model chunk
  // does, whose backward is the stage's last op.
  [[nodiscard]] bool fills_buckets(int virtual_stage) const {
    if (!reduces_each_micro_batch()) return costs_.layout().zero < 3;
    return !shards_parameters() && virtual_stage < costs_.layout().pipeline;
  }

  // What the end of a step costs on one stage.
  struct StageCosts {
    std::vector<std::vector<Picoseconds>> buckets;  // by local virtual stage, in backward order
    std::vector<std::vector<double>> bucket_bytes;  // bytes of their reductions
    Picoseconds reduce = 0;                         // time to reduce all of them at the end
    double reduce_bytes = 0;
    Picoseconds copies = 0;  // what the two copies of its layers exchange
    Picoseconds optimizer = 0;
    Picoseconds gather = 0;  // of its parameters, after the optimizer
    double gather_bytes = 0;
    // What the next step's first forward loses to a gather that runs under it. Steps are alike, so that each
    // counts its own gather's.
    Picoseconds lost_to_gather = 0;
  };
  [[nodiscard]] const std::vector<StageCosts>& stages() const { return stages_; }
  // The costs as a program's ends. A sharded part was reduced with every micro-batch; ZeRO-3 gathers its
  // parameters with the next step.
  [[nodiscard]] const std::vector<StageEnd>& ends() const { return ends_; }
  // The place of a virtual stage's first bucket among those of its pipeline stage.
  [[nodiscard]] std::size_t first_bucket(int virtual_stage) const { return first_bucket_[at(virtual_stage)]; }
  [[nodiscard]] bool has_replicas() const { return replicas_ > 1; }

 private:
  // How many parameters a rank holds: `dense` ones equal on all data x context ranks, and routed experts,
  // which only ranks of equal expert coordinate share.
  struct Held {
    double dense = 0;
    double experts = 0;
  };
  [[nodiscard]] static Held held_by_rank(const PartParameters& size, const Layout& layout);
  [[nodiscard]] bool reduces_at_end() const {
    const bool whole = costs_.layout().zero == 1 && !scatters();
    return costs_.layout().zero < 2 && (whole || !costs_.framework().overlap_grad_reduce);
  }
  // Whether a rank gets only its shard of the sums.
  [[nodiscard]] bool scatters() const {
    return costs_.layout().zero >= 2 || (costs_.layout().zero == 1 && costs_.framework().scatter_gradients);
  }
  // Adds the reductions of a virtual stage's parts to its pipeline stage; returns what a rank holds of them.
  Held add_buckets(const std::vector<ModelPart>& parts, const PartSizes& trained, StageCosts& stage);
  // What the end of a step costs on the stage, of which a rank holds `held`.
  void price_end(const Held& held, int stage_index);
  void price_parts(const PartSizes& sizes, const PartSizes& trained);
  void make_ends();
  // The time of a collective between the two ranks that hold copies; `stage` is either of the two.
  Picoseconds between_copies(Collective kind, double bytes, int stage);
  Op reduce(const Held& held);
  Op gather(const Held& held, bool in_fp8 = false);
  // One collective over each of the two groups, one after the other.
  Op collective(OpName name, Collective kind, const Held& held, double bytes_each);

  const LayerCosts& costs_;
  int replicas_;
  std::vector<StageCosts> stages_;                      // by pipeline stage
  std::vector<StageEnd> ends_;                          // the same
  std::vector<std::size_t> first_bucket_;               // by virtual stage
  std::vector<std::vector<OpResult::Bucket>> buckets_;  // by pipeline stage, of the step that runs
  std::vector<Picoseconds> stage_ends_;                 // by pipeline stage: the last op of any lane
  StageEndRun run_;
  std::array<Op, kModelParts> gather_{}, reduce_{};  // by part, where parameters or gradients are sharded
  RangeUse use_;
};

}  // namespace equipoise
