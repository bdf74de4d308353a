#include "sim/step/lane_runs.h"

#include <algorithm>
#include <array>

#include "policies/base/index.h"

namespace equipoise {

LaneRuns::LaneRuns(const LayerCosts& costs, const PartOrders& orders, const GradientSync& gradients,
                   LaneBlocks& blocks)
    : orders_(orders), gradients_(gradients), blocks_(blocks) {
  for (const int layer : first_layers(costs.model(), costs.layout())) {
    first_layer_.push_back(layer);
    first_of_backward_.push_back(std::max(layer, costs.model().training.frozen_layers));
  }
}

static void push_run(OpLane& lane, std::uint32_t block, int repeat, std::int32_t bucket, std::int32_t layer) {
  if (repeat > 0) lane.runs.push_back({block, static_cast<std::uint32_t>(repeat), bucket, layer});
}

// Writes the parts of an op as runs of blocks; the base of all kinds of ops.
struct LaneRuns::Runs {
  LaneRuns& runs;
  OpLane& out;
  std::size_t entry;                // among the lane's arrivals, or the micro-batch
  std::int32_t first_layer;         // of the virtual stage
  std::int32_t bucket = kNoBucket;  // the virtual stage's first bucket, if the op fills its buckets
  bool reduces = false;             // whether it reduces gradients as soon as they are there

  void gather(ModelPart part) const { runs.push_shared(out, LaneBlocks::gather_of(part)); }
  void wait() const { runs.push_shared(out, LaneBlocks::kWait); }
  void done(const OrderedPart& part) const {
    if (reduces) runs.push_shared(out, LaneBlocks::reduce_of(part.part));
  }
  // `index` is the place of the first of `repeat` layers in the part's order; `local` is the layer's number
  // on the virtual stage.
  void push(std::size_t block, const OrderedPart& part, int repeat = 1, int index = 0,
            int local = kNoLayer) const {
    push_run(out, LaneBlocks::block_of(entry, block), repeat,
             bucket == kNoBucket ? kNoBucket : bucket + part.bucket + index, layer(local));
  }
  [[nodiscard]] std::int32_t layer(int local) const {
    return local == kNoLayer ? kNoLayer : first_layer + local;
  }
  static int last_of(const OrderedPart& part) { return part.first + part.layers - 1; }
};

struct LaneRuns::ForwardRuns : Runs {
  void work(const OrderedPart& part) const {
    push(LaneBlocks::forward_of(part.part), part, part.layers, 0,
         is_layer(part.part) ? part.first : kNoLayer);
  }
};

// Layers run from the last to the first; the recomputed ones are the stage's first.
struct LaneRuns::BackwardRuns : Runs {
  int recomputed, most_recomputed;         // recomputed by this lane, and by any that it is synchronized with
  const std::vector<std::int32_t>* again;  // LaneArrivals::again of the op
  bool split;

  void work(const OrderedPart& part) const {
    if (!is_layer(part.part))
      return push(part.part == ModelPart::head ? LaneBlocks::kHeadBackward : LaneBlocks::kEmbedBackward,
                  part);
    const std::size_t k = index_of(part.part);
    const std::size_t backward = (split ? LaneBlocks::kInputGradient : LaneBlocks::kBackward) + k;
    // Layers that no lane recomputes repeat one block.
    const int plain = part.layers - part.recomputed_of(most_recomputed);
    push(backward, part, plain, 0, last_of(part));
    for (int i = plain; i < part.layers; ++i) {
      const int local = last_of(part) - i;
      recompute(part, local);
      push(backward, part, 1, i, local);
    }
  }
  // The forward of a layer that this lane, or another that it is synchronized with, recomputes.
  void recompute(const OrderedPart& part, int local) const {
    const bool shared = again != nullptr && is_moe(kind_of(part.part));
    if (!shared && local >= recomputed) return;
    const std::size_t whose = shared ? at((*again)[at(local)]) : entry;
    const std::uint32_t less = LaneBlocks::block_of(whose, LaneBlocks::kRepeat + index_of(part.part));
    const bool whole = out.blocks[less].steps.empty();
    push_run(out, whole ? LaneBlocks::block_of(whose, LaneBlocks::kForward + index_of(part.part)) : less, 1,
             kNoBucket, layer(local));
  }
};

// A forward and a backward side by side. Layers in a row that run alike are one run.
struct LaneRuns::PairRuns {
  ForwardRuns forward_runs;
  BackwardRuns backward_runs;
  std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds>&
      blocks;  // layers side by side in the open run; -1: none yet

  void forward(const OrderedPart& part) const { forward_runs.work(part); }
  void backward(const OrderedPart& part) const { backward_runs.work(part); }
  void done(const OrderedPart& part) const { backward_runs.done(part); }
  void both(const OrderedPart& f, const OrderedPart& b) const {
    OpLane& out = forward_runs.out;
    if (b.first < backward_runs.most_recomputed) backward_runs.recompute(b, b.first);
    const std::size_t of_forward = index_of(f.part), of_backward = index_of(b.part);
    std::int64_t& block = blocks[of_forward][of_backward];
    if (block < 0)
      block = forward_runs.runs.blocks_.add_pair(
          LaneBlocks::block_of(forward_runs.entry, LaneBlocks::kForward + of_forward),
          LaneBlocks::block_of(backward_runs.entry, LaneBlocks::kBackward + of_backward));
    const std::int32_t bucket =
        backward_runs.bucket == kNoBucket ? kNoBucket : backward_runs.bucket + b.bucket;
    // Buckets in a row: the next repetition fills the next one.
    const bool again = !out.runs.empty() && out.runs.back().block == static_cast<std::uint32_t>(block);
    if (again && (bucket == kNoBucket ||
                  out.runs.back().bucket + static_cast<std::int32_t>(out.runs.back().repeat) == bucket))
      ++out.runs.back().repeat;
    else
      push_run(out, static_cast<std::uint32_t>(block), 1, bucket, kNoLayer);
  }
};

struct LaneRuns::WeightRuns : Runs {
  void work(const OrderedPart& part) const {
    if (is_layer(part.part))
      return push(LaneBlocks::kWeightGradient + index_of(part.part), part, part.layers, 0, last_of(part));
    if (bucket != kNoBucket) push(LaneBlocks::kNothing, part);
  }
};

void LaneRuns::add_runs(const LaneOps& lane, const LockstepGroup* lockstep, int stage, std::size_t position,
                        std::int32_t bucket, bool reducing, OpLane& out) {
  const std::vector<ScheduleOp>& ops = lane.schedule.ops[at(stage)];
  const auto runs_of = [&](std::size_t index, std::int32_t fills, bool reduces) {
    const ScheduleOp& op = ops[index];
    const bool is_forward = op.kind != OpKind::B && op.kind != OpKind::W;
    const auto& first = is_forward ? first_layer_ : first_of_backward_;
    return Runs{*this, out,    lane.entry_of(stage, index), first[at(lane.virtual_stage(op, stage))],
                fills, reduces};
  };
  const auto backward_runs = [&](std::size_t index) {
    const int recomputed = lane.recomputed(ops[index], stage);
    const int most = lockstep == nullptr ? recomputed : most_recomputed(*lockstep, orders_, stage, index);
    const auto* again = lane.arrivals == nullptr ? nullptr : lane.arrivals->again_of(stage, index);
    return BackwardRuns{runs_of(index, bucket, reducing), recomputed, most, again,
                        lane.splits_backward && !ops[index].whole};
  };
  const ScheduleOp& op = ops[position];
  const int v = lane.virtual_stage(op, stage);
  const bool each = gradients_.shards_parameters() || reducing;
  if (op.with_next) {
    std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds> blocks{};
    for (auto& of_forward : blocks) of_forward.fill(-1);
    each_part_of_pair(
        orders_.forward(v), orders_.backward(lane.virtual_stage(ops[position + 1], stage)),
        PairRuns{ForwardRuns{runs_of(position, kNoBucket, false)}, backward_runs(position + 1), blocks});
  } else if (op.kind == OpKind::W) {
    each_part(orders_.weights(v), each, WeightRuns{runs_of(position, bucket, reducing)});
  } else if (op.kind == OpKind::B) {
    each_part(orders_.backward(v), each, backward_runs(position));
  } else {
    each_part(orders_.forward(v), each, ForwardRuns{runs_of(position, bucket, reducing)});
  }
}

void LaneRuns::add(const CostedLane& costed, const LaneArrivals* arrivals, OpLane& out) {
  const Schedule& schedule = costed.schedule;
  const LockstepGroup* const lockstep = costed.lockstep;
  const LaneOps lane{schedule, costed.micro_batches, arrivals, orders_, splits_backward(schedule)};
  std::vector<std::int32_t> last_gradient(at(orders_.virtual_stages()), -1);
  for (int s = 0; s < schedule.stages; ++s)
    for (const ScheduleOp& op : schedule.ops[at(s)])
      if (releases(op, lane.splits_backward)) last_gradient[at(lane.virtual_stage(op, s))] = op.micro_batch;
  // The gradient bucket that the op fills first; with ZeRO-2 only the step's last backward fills any.
  const auto bucket_of = [&](const ScheduleOp& gradient, int v) {
    const bool fills = releases(gradient, lane.splits_backward) &&
                       last_gradient[at(v)] == gradient.micro_batch && gradients_.fills_buckets(v) &&
                       (lockstep == nullptr || lockstep->ends_step || !gradients_.reduces_each_micro_batch());
    return fills ? static_cast<std::int32_t>(gradients_.first_bucket(v)) : kNoBucket;
  };

  for (int s = 0; s < schedule.stages; ++s) {
    const std::vector<ScheduleOp>& ops = schedule.ops[at(s)];
    bool reducing = false;  // whether the op before left reductions in the background
    for (std::size_t i = 0; i < ops.size(); ++i) {
      ScheduledOp& scheduled = out.stages[at(s)][i];
      scheduled.first_run = static_cast<std::uint32_t>(out.runs.size());
      if (ends_pair(out.stages[at(s)], i)) continue;                        // the first of the pair ran both
      const ScheduleOp& gradient = ops[i].with_next ? ops[i + 1] : ops[i];  // the pair's op that may make
                                                                            // gradients
      const std::int32_t bucket = bucket_of(gradient, lane.virtual_stage(gradient, s));
      if (reducing) push_shared(out, LaneBlocks::kWait);
      // Gradients that fill no bucket are reduced at once, in the background.
      reducing = releases(gradient, lane.splits_backward) && gradients_.reduces_each_micro_batch() &&
                 bucket == kNoBucket;
      add_runs(lane, lockstep, s, i, bucket, reducing, out);
      if (reducing && i + (ops[i].with_next ? 2 : 1) == ops.size()) push_shared(out, LaneBlocks::kWait);
      scheduled.run_count = static_cast<std::uint32_t>(out.runs.size()) - scheduled.first_run;
    }
  }
}

}  // namespace equipoise
