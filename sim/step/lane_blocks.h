// The blocks of a lane: those of each micro-batch, and behind them those that a lane shares with the lanes
// that it waits for.
//
// A layer of a micro-batch becomes one block. Its local ops come from the layer's op inventory (LayerCosts),
// its context-parallel skeleton from the layer timeline that runs at layer resolution (layer_block.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/gradient_sync.h"
#include "sim/step/layer_block.h"
#include "sim/step/op_program.h"
#include "sim/step/part_order.h"

namespace equipoise {

class LaneBlocks {
 public:
  // The blocks of one micro-batch in the order of OpLane::blocks, one per layer kind if there are several.
  enum BlockKind : std::size_t {
    kEmbedForward,
    kEmbedBackward,
    kHeadForward,
    kHeadBackward,
    kForward,
    kBackward = kForward + kLayerKinds,
    kInputGradient = kBackward + kLayerKinds,
    kWeightGradient = kInputGradient + kLayerKinds,
    kRepeat = kWeightGradient + kLayerKinds,  // the forward, run again; without ops if equal to the first
    kNothing = kRepeat + kLayerKinds,         // without ops: marks a point in time
    kBlockKinds
  };

  // The blocks that a lane runs together with others.
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

  // `entry` is the micro-batch, or its place among the other entries of LaneArrivals.
  static std::uint32_t block_of(std::size_t entry, std::size_t part) {
    return static_cast<std::uint32_t>(entry * kBlockKinds + part);
  }

  LaneBlocks(const LayerCosts& costs, const GradientSync& gradients);

  // Blocks go to `out` from now on and reuse the memory of an earlier step's.
  void begin_lane(OpLane& out);
  // `number` is the place of the micro-batch in its lane.
  void add_micro_batch(const MicroBatchCost& cost, const MicroBatch& micro_batch, std::int32_t number);
  void add_shared();
  // Adds a layer of a forward next to one of a backward, both of them blocks of the lane; returns its number.
  std::uint32_t add_pair(std::uint32_t forward, std::uint32_t backward);
  // The block of this kind that the lane runs together with others.
  [[nodiscard]] std::uint32_t shared_block(std::uint32_t shared) const { return first_shared_ + shared; }
  void end_lane() { out_->blocks.resize(count_); }

 private:
  // One layer's ops on a rank that holds a number of tokens.
  struct LayerOps {
    Held held{-1};
    ExpertArrivals arriving;
    std::vector<Op> forward_before, forward_after, backward_before, backward_after;
    std::vector<Op> again_before, again_after;           // the parts of a forward that recompute runs again
    std::vector<Op> input_before, input_after, weights;  // the two halves of a backward
  };
  static void split_backward(LayerOps& ops);
  // The embedding and the head, forward and backward.
  struct EndOps {
    std::int64_t tokens = -1;
    std::array<std::vector<Op>, 4> lists;
  };
  // A shared pointer, because a later layer may take its place in the memo.
  std::shared_ptr<const LayerOps> layer_ops(LayerKind kind, const Held& held, const ExpertArrivals& arriving);
  std::shared_ptr<const EndOps> end_ops(std::int64_t tokens);
  [[nodiscard]] std::shared_ptr<const LayerOps> only_exchanges() const;
  void find_rank_ops(LayerKind kind, const MicroBatchCost& cost, std::size_t half,
                     std::vector<std::shared_ptr<const LayerOps>>& out);
  static BlockRole role_of(std::size_t part);
  OpBlock& add_block();
  void add_end_blocks(const MicroBatchCost& cost, std::size_t first);
  void find_mixer(Mixer mixer, const MicroBatch& micro_batch, const MicroBatchCost& cost);
  void add_layer_blocks(LayerKind kind, const MicroBatchCost& cost, std::size_t first);
  struct PassFlops {
    std::vector<double> forward, backward;  // by CP rank
  };
  [[nodiscard]] PassFlops attention_flops(const MicroBatchCost& cost, const ExchangedTokens& tokens,
                                          std::int64_t window) const;

  const LayerCosts& costs_;
  const GradientSync& gradients_;
  OpLane* out_ = nullptr;  // the lane
  std::size_t count_ = 0;  // number of its blocks
  std::uint32_t first_shared_ = 0;
  // Direct-mapped by tokens and, for layers with experts, also by what arrives.
  std::array<std::vector<std::shared_ptr<const LayerOps>>, kLayerKinds> memo_;
  std::vector<std::shared_ptr<const EndOps>> end_memo_;
  // By rank, the layers of the micro-batch under expansion.
  std::array<std::vector<std::shared_ptr<const LayerOps>>, kMostNanoBatches> rank_ops_;
  std::vector<HeldByHalf> held_;
  std::vector<std::shared_ptr<const EndOps>> rank_ends_;
  std::vector<const std::vector<Op>*> before_lists_, after_lists_;
  OpList before_, after_;
  // What layers of the mixer under expansion share: exchanges, and FLOPs by rank.
  ContextExchanges exchanges_;
  std::vector<MixerKernel> forward_kernels_, backward_kernels_;
  RangeUse use_;                // written and not read: predictions of a step are counted at stage fidelity
};

}  // namespace equipoise
