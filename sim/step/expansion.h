// From a plan's step to an op program: every kernel and collective of every rank, with its duration.
//
// A layer of a micro-batch becomes one block. Its local ops come from the layer's op inventory (LayerCosts),
// its context-parallel skeleton from the layer timeline that runs at layer resolution: synchronisations, what
// runs beside them, attention between them. Both fidelities thus run the same durations; what differs is that
// here every op is a task of its own, so that single GPUs can be slow, jitter can strike single kernels,
// and times can be attributed to kernels.
//
// Overlap follows the frameworks: gradient buckets under the last backward, ring steps under attention,
// Skrull's all-gather under local documents, backward TP collectives under their GEMMs (forward ones on
// demand).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/layer_timeline.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/lockstep.h"
#include "sim/step/op_program.h"
#include "sim/step/part_order.h"
#include "sim/step/step_end.h"
#include "sim/step/step_result.h"

namespace equipoise {

// One op list per CP rank; ranks without tokens have an empty one. All others are of equal structure.
using RankOps = std::span<const std::vector<Op>* const>;

// Appends the lists' ops; what a rank without tokens lacks takes no time.
void append_ops(RankOps lists, OpBlock& block);

// A layer: `before`, then the context-parallel part, then `after`. `timeline` has the lists in it; what it
// holds beyond them is attention (`attention` of each rank in all; `attention_flops`: of the busiest one) and
// the host's stalls. `exchanges`: the timeline's synchronisations as ops. `halves`: of two nano-batches,
// `before` is of the one that comes first and `after` of the other one.
void append_layer(RankOps before, RankOps after, const LayerTimeline& timeline,
                  std::span<const Picoseconds> attention, double attention_flops,
                  std::span<const Op> exchanges, bool halves, OpBlock& block);

// A layer of a forward beside a layer of a backward, on the same ranks (walk_layer_pair in
// sim/cost/layer_timeline.h): their ops in the order in which they are issued, the exchanges of each over
// what the other computes.
OpBlock pair_of_layers(const OpBlock& forward, const OpBlock& backward);

// The list without weight gradients: a communication that hid under one stands alone. And those gradients
// alone.
std::vector<Op> without_weight_gradients(const std::vector<Op>& ops);
std::vector<Op> only_weight_gradients(const std::vector<Op>& ops);

class StepExpander {
 public:
  // fold_tp: one task stands for the ranks of a TP group, which do the same; off: every GPU has its own.
  StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options, bool fold_tp);

  // Throws UserError where the sharding rule or the schedule refuses the step.
  OpProgram expand(const Step& step);

  // The same lane by lane, for who has costed them already (StepSimulator::run): begin, every lane that has
  // micro-batches, finish. Buffers of the program are used again.
  void begin(const Step& step, OpProgram& program);
  void add_lane(const CostedLane& lane, OpProgram& program);
  void finish(OpProgram& program) const;

 private:
  // The blocks of one micro-batch, in this order in OpLane::blocks; by layer kind where there are several.
  enum BlockKind : std::size_t {
    kEmbedForward,
    kEmbedBackward,
    kHeadForward,
    kHeadBackward,
    kForward,
    kBackward = kForward + kLayerKinds,
    kInputGradient = kBackward + kLayerKinds,
    kWeightGradient = kInputGradient + kLayerKinds,
    kRepeat = kWeightGradient + kLayerKinds,  // a forward run again; no ops where it is as the first
    kNothing = kRepeat + kLayerKinds,         // no ops: marks a point in time
    kBlockKinds
  };

  // The blocks behind those of all micro-batches of a lane that waits for others.
  enum Shared : std::uint32_t {
    kGather,  // by ModelPart
    kReduce = kGather + kModelParts,
    kWait = kReduce + kModelParts
  };
  static std::uint32_t gather_of(ModelPart part) { return kGather + static_cast<std::uint32_t>(part); }
  static std::uint32_t reduce_of(ModelPart part) { return kReduce + static_cast<std::uint32_t>(part); }
  static BlockKind forward_of(ModelPart part) {
    if (is_layer(part)) return static_cast<BlockKind>(kForward + index_of(part));
    return part == ModelPart::head ? kHeadForward : kEmbedForward;
  }

  // `entry`: the micro-batch, or its place among the other entries of LaneArrivals.
  static std::uint32_t block_of(std::size_t entry, std::size_t part) {
    return static_cast<std::uint32_t>(entry * kBlockKinds + part);
  }
  static BlockRole role_of(std::size_t part);

  // One layer's ops on a rank that holds a number of tokens.
  struct LayerOps {
    Held held{-1};
    ExpertArrivals arriving;
    std::vector<Op> forward_before, forward_after, backward_before, backward_after;
    std::vector<Op> again_before, again_after;           // a forward's, without what is not run again
    std::vector<Op> input_before, input_after, weights;  // a backward in its two halves
  };
  static void split_backward(LayerOps& ops);
  // The embedding and the head, forward and backward.
  struct EndOps {
    std::int64_t tokens = -1;
    std::array<std::vector<Op>, 4> lists;
  };
  // Shared, since the next one may take its place.
  std::shared_ptr<const LayerOps> layer_ops(LayerKind kind, const Held& held, const ExpertArrivals& arriving);
  std::shared_ptr<const EndOps> end_ops(std::int64_t tokens);
  [[nodiscard]] std::shared_ptr<const LayerOps> only_exchanges() const;
  void find_rank_ops(LayerKind kind, const MicroBatchCost& cost, std::size_t half,
                     std::vector<std::shared_ptr<const LayerOps>>& out);
  void expand_lockstep_groups(const Step& step, OpProgram& program);
  void add_costed(const CostedLane& lane, OpProgram& program);
  OpBlock& add_block(OpLane& out);
  // `number`: of the micro-batch in its lane.
  void add_blocks(const MicroBatchCost& cost, const MicroBatch& micro_batch, std::int32_t number,
                  OpLane& out);
  void add_end_blocks(const MicroBatchCost& cost, OpLane& out, std::size_t first);
  void add_layer_blocks(LayerKind kind, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                        OpLane& out, std::size_t begin);
  [[nodiscard]] double attention_flops(const MicroBatchCost& cost, const ExchangedTokens& tokens,
                                       std::int64_t window) const;
  void add_shared_blocks(OpLane& out);
  void add_transfers(const MicroBatchCost& cost, OpLane& out);
  // `arrivals`: null if the lane waits for no other.
  void add_scheduled_ops(const CostedLane& lane, const LaneArrivals* arrivals, OpLane& out);
  struct Runs;
  struct ForwardRuns;
  struct BackwardRuns;
  struct WeightRuns;
  struct PairRuns;
  // Whether a gradient op's reductions run in the background: it has no buckets to fill.
  [[nodiscard]] bool reduces_at_once(std::int32_t bucket) const {
    return gradients_.reduces_each_micro_batch() && bucket == kNoBucket;
  }
  // The lane that is expanded.
  struct Expanding {
    std::span<const MicroBatch> micro_batches;
    const Schedule& schedule;
    const LockstepGroup* lockstep;  // null if the lane waits for no other
    const LaneArrivals* arrivals;   // the same
    bool split;                     // the schedule splits backwards
    OpLane& out;
  };
  // The runs of one op of the schedule, or of a pair. `bucket`: the first that it fills.
  void add_runs(const Expanding& lane, int stage, std::size_t position, std::int32_t bucket, bool reducing);
  void push_shared(OpLane& out, std::uint32_t shared) const { out.runs.push_back({shared_block_ + shared}); }

  const LayerCosts& costs_;
  StepOptions options_;
  int tensor_;
  MicroBatchCoster coster_;
  PartOrders orders_;
  GradientSync gradients_;
  std::uint32_t shared_block_ = 0;         // first of those that all micro-batches of the lane share
  std::vector<std::int32_t> first_layer_, first_of_backward_;  // by virtual stage: of the model's
  // Direct-mapped by tokens, layers with experts by what arrives, too.
  std::array<std::vector<std::shared_ptr<const LayerOps>>, kLayerKinds> memo_;
  std::vector<std::shared_ptr<const EndOps>> end_memo_;
  // Of the micro-batch that is expanded, by rank.
  std::array<std::vector<std::shared_ptr<const LayerOps>>, kMostNanoBatches> rank_ops_;
  std::vector<HeldByHalf> held_;
  std::vector<std::shared_ptr<const EndOps>> rank_ends_;
  std::vector<const std::vector<Op>*> before_lists_, after_lists_;
  std::size_t blocks_ = 0;                  // of the lane
  std::vector<std::int32_t> scheduled_of_;  // of the same: scratch of add_scheduled_ops
  OpList before_, after_;
  ContextExchanges exchanges_;  // of the layer that is added
  RangeUse use_;                // of no meaning: the step's own predictions are counted at stage fidelity
};

}  // namespace equipoise
