// Which blocks the ops of a lane's schedule run, how often, and what they wait for.

#include "policies/base/index.h"
#include "sim/schedule/timing.h"
#include "sim/step/expansion.h"

namespace equipoise {

static void push_run(OpLane& lane, std::uint32_t block, int repeat, std::int32_t bucket, std::int32_t layer) {
  if (repeat > 0) lane.runs.push_back({block, static_cast<std::uint32_t>(repeat), bucket, layer});
}

// The parts of an op as runs of blocks: what all kinds of ops have in common.
struct StepExpander::Runs {
  StepExpander& expander;
  OpLane& out;
  std::size_t entry;                // of the lane's arrivals, or the micro-batch
  std::int32_t first_layer;         // the virtual stage's
  std::int32_t bucket = kNoBucket;  // the virtual stage's first, if the op fills its buckets
  bool reduces = false;             // gradients, as soon as they are there

  void gather(ModelPart part) const { expander.push_shared(out, gather_of(part)); }
  void wait() const { expander.push_shared(out, kWait); }
  void done(const OrderedPart& part) const {
    if (reduces) expander.push_shared(out, reduce_of(part.part));
  }
  // `index`: of the first of `repeat` layers among those of the part, in their order. `local`:
  // which of the virtual stage's layers that is.
  void push(std::size_t block, const OrderedPart& part, int repeat = 1, int index = 0,
            int local = kNoLayer) const {
    push_run(out, block_of(entry, block), repeat,
             bucket == kNoBucket ? kNoBucket : bucket + part.bucket + index, layer(local));
  }
  [[nodiscard]] std::int32_t layer(int local) const {
    return local == kNoLayer ? kNoLayer : first_layer + local;
  }
  static int last_of(const OrderedPart& part) { return part.first + part.layers - 1; }
};

struct StepExpander::ForwardRuns : Runs {
  void work(const OrderedPart& part) const {
    push(forward_of(part.part), part, part.layers, 0, is_layer(part.part) ? part.first : kNoLayer);
  }
};

// From the last layer to the first; the recomputed ones are the stage's first.
struct StepExpander::BackwardRuns : Runs {
  int recomputed, most_recomputed;         // by this lane, by any that it is synchronized with
  const std::vector<std::int32_t>* again;  // LaneArrivals::again of the op
  bool split;

  void work(const OrderedPart& part) const {
    if (!is_layer(part.part))
      return push(part.part == ModelPart::head ? kHeadBackward : kEmbedBackward, part);
    const std::size_t k = index_of(part.part);
    const std::size_t backward = (split ? kInputGradient : kBackward) + k;
    // Layers that nobody recomputes repeat one block.
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
    const std::uint32_t less = block_of(whose, kRepeat + index_of(part.part));
    const bool whole = out.blocks[less].steps.empty();
    push_run(out, whole ? block_of(whose, kForward + index_of(part.part)) : less, 1, kNoBucket, layer(local));
  }
};

// A forward and a backward side by side. Layers in a row that run alike are one run.
struct StepExpander::PairRuns {
  ForwardRuns forward_runs;
  BackwardRuns backward_runs;
  std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds>&
      blocks;  // of layers side by side; -1: none yet

  void forward(const OrderedPart& part) const { forward_runs.work(part); }
  void backward(const OrderedPart& part) const { backward_runs.work(part); }
  void done(const OrderedPart& part) const { backward_runs.done(part); }
  void both(const OrderedPart& f, const OrderedPart& b) const {
    OpLane& out = forward_runs.out;
    if (b.first < backward_runs.most_recomputed) backward_runs.recompute(b, b.first);
    const std::size_t of_forward = index_of(f.part), of_backward = index_of(b.part);
    std::int64_t& block = blocks[of_forward][of_backward];
    if (block < 0) {
      block = static_cast<std::int64_t>(forward_runs.expander.blocks_);
      OpBlock& added = forward_runs.expander.add_block(out);
      added = pair_of_layers(out.blocks[block_of(forward_runs.entry, kForward + of_forward)],
                             out.blocks[block_of(backward_runs.entry, kBackward + of_backward)]);
    }
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

struct StepExpander::WeightRuns : Runs {
  void work(const OrderedPart& part) const {
    if (is_layer(part.part))
      return push(kWeightGradient + index_of(part.part), part, part.layers, 0, last_of(part));
    if (bucket != kNoBucket) push(kNothing, part);
  }
};

void StepExpander::add_runs(const Expanding& lane, int stage, std::size_t position, std::int32_t bucket,
                            bool reducing) {
  const std::vector<ScheduleOp>& ops = lane.schedule.ops[at(stage)];
  const auto virtual_stage = [&](const ScheduleOp& op) {
    return op.virtual_stage * costs_.layout().pipeline + stage;
  };
  const auto runs_of = [&](std::size_t index, std::int32_t fills, bool reduces) {
    const ScheduleOp& op = ops[index];
    const std::size_t entry =
        lane.arrivals == nullptr ? at(op.micro_batch) : lane.arrivals->entry_of(op, stage, index);
    const bool is_forward = op.kind != OpKind::B && op.kind != OpKind::W;
    const auto& first = is_forward ? first_layer_ : first_of_backward_;
    return Runs{*this, lane.out, entry, first[at(virtual_stage(op))], fills, reduces};
  };
  const auto backward_runs = [&](std::size_t index) {
    const ScheduleOp& op = ops[index];
    const int recomputed =
        orders_.recomputed_layers(virtual_stage(op), lane.micro_batches[at(op.micro_batch)]);
    const int most =
        lane.lockstep == nullptr ? recomputed : most_recomputed(*lane.lockstep, orders_, stage, index);
    const auto* again = lane.arrivals == nullptr ? nullptr : lane.arrivals->again_of(stage, index);
    return BackwardRuns{runs_of(index, bucket, reducing), recomputed, most, again, lane.split && !op.whole};
  };
  const ScheduleOp& op = ops[position];
  const int v = virtual_stage(op);
  const bool each = gradients_.shards_parameters() || reducing;
  if (op.with_next) {
    std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds> blocks{};
    for (auto& of_forward : blocks) of_forward.fill(-1);
    each_part_of_pair(
        orders_.forward(v), orders_.backward(virtual_stage(ops[position + 1])),
        PairRuns{ForwardRuns{runs_of(position, kNoBucket, false)}, backward_runs(position + 1), blocks});
  } else if (op.kind == OpKind::W) {
    each_part(orders_.weights(v), each, WeightRuns{runs_of(position, bucket, reducing)});
  } else if (op.kind == OpKind::B) {
    each_part(orders_.backward(v), each, backward_runs(position));
  } else {
    each_part(orders_.forward(v), each, ForwardRuns{runs_of(position, bucket, reducing)});
  }
}

void StepExpander::add_scheduled_ops(const CostedLane& costed, const LaneArrivals* arrivals, OpLane& out) {
  const std::span<const MicroBatch> micro_batches = costed.micro_batches;
  const Schedule& schedule = costed.schedule;
  const LockstepGroup* const lockstep = costed.lockstep;
  const int pipeline = costs_.layout().pipeline;
  const int virtual_stages = orders_.virtual_stages();
  enum Class { kFirst, kAgain, kBack, kClasses };  // F and D; R; B: what feeds the same class next door
  std::vector<std::int32_t>& scheduled_of = scheduled_of_;
  scheduled_of.assign(micro_batches.size() * at(virtual_stages) * kClasses, kNoInput);
  const auto slot = [&](std::int32_t j, int v, Class c) {
    return (at(j) * at(virtual_stages) + at(v)) * kClasses + at(c);
  };
  const auto class_of = [](OpKind kind) {
    return kind == OpKind::B ? kBack : kind == OpKind::R ? kAgain : kFirst;
  };

  const Expanding lane{micro_batches, schedule, lockstep, arrivals, splits_backward(schedule), out};
  const VirtualStages order = costs_.layout().stage_order();
  std::vector<std::int32_t> last_gradient(at(virtual_stages), -1);
  for (int s = 0; s < pipeline; ++s)
    for (std::size_t i = 0; i < schedule.ops[at(s)].size(); ++i) {
      const ScheduleOp& op = schedule.ops[at(s)][i];
      const int v = op.virtual_stage * pipeline + s;
      if (releases(op, lane.split)) last_gradient[at(v)] = op.micro_batch;
      if (op.kind != OpKind::W)
        scheduled_of[slot(op.micro_batch, v, class_of(op.kind))] = static_cast<std::int32_t>(i);
    }

  for (int s = 0; s < pipeline; ++s) {
    bool reducing = false;  // the op before has left reductions in the background
    for (std::size_t i = 0; i < schedule.ops[at(s)].size(); ++i) {
      const std::vector<ScheduleOp>& ops = schedule.ops[at(s)];
      const ScheduleOp& op = ops[i];
      const int v = op.virtual_stage * pipeline + s;
      const std::size_t j = at(op.micro_batch);
      ScheduledOp scheduled;
      scheduled.op = op;
      scheduled.first_run = static_cast<std::uint32_t>(out.runs.size());
      if (const bool ends_pair = i > 0 && ops[i - 1].with_next; !ends_pair) {  // the first ran both
        const ScheduleOp& gradient = op.with_next ? ops[i + 1] : op;  // the one that may make gradients
        const int of = gradient.virtual_stage * pipeline + s;
        const bool fills =
            releases(gradient, lane.split) && last_gradient[at(of)] == gradient.micro_batch &&
            gradients_.fills_buckets(of) &&
            (lockstep == nullptr || lockstep->ends_step || !gradients_.reduces_each_micro_batch());
        const std::int32_t bucket =
            fills ? static_cast<std::int32_t>(gradients_.first_bucket(of)) : kNoBucket;
        if (reducing) push_shared(out, kWait);
        reducing = releases(gradient, lane.split) && reduces_at_once(bucket);
        add_runs(lane, s, i, bucket, reducing);
        if (reducing && i + (op.with_next ? 2 : 1) == ops.size()) push_shared(out, kWait);
      }
      scheduled.run_count = static_cast<std::uint32_t>(out.runs.size()) - scheduled.first_run;

      // Transfers of a micro-batch: to the next stage of its way, to the previous one, around the ring of
      // virtual stages.
      const auto transfer = [&](int direction) {
        return static_cast<std::int64_t>((j * 3 + at(direction)) * at(out.context));
      };
      const int step = op.kind == OpKind::B ? -1 : 1;
      const auto hop = [&](int sender) { return transfer(order.wraps(sender, step) ? 2 : step > 0 ? 0 : 1); };
      const bool comes = step > 0 ? !order.is_first(v) : !order.is_last(v);
      if (op.kind != OpKind::W && comes) {
        const int from = order.further(v, -step);
        scheduled.input_stage = from % pipeline;
        scheduled.input_op = scheduled_of[slot(op.micro_batch, from, class_of(op.kind))];
        scheduled.transfer = hop(from);
      }
      const bool leaves = step > 0 ? !order.is_last(v) : !order.is_first(v);
      if (options_.blocking_sends && op.kind != OpKind::W && leaves && pipeline > 1)
        scheduled.blocking_send = hop(v);
      out.stages[at(s)].push_back(scheduled);
    }
  }
}

}  // namespace equipoise
