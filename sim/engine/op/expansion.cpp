#include "sim/engine/op/expansion.h"

#include <algorithm>
#include <cassert>
#include <functional>

#include "sim/engine/op/layer_block.h"
#include "sim/schedule/timing.h"

namespace equipoise {
namespace {

constexpr std::size_t kMemoSlots = 512;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// The blocks of one micro-batch, in this order in OpLane::blocks; by layer kind where there are several.
enum Part : std::size_t {
  kEmbedForward,
  kEmbedBackward,
  kHeadForward,
  kHeadBackward,
  kForward,
  kBackward = kForward + kLayerKinds,
  kInputGradient = kBackward + kLayerKinds,
  kWeightGradient = kInputGradient + kLayerKinds,
  kNothing = kWeightGradient + kLayerKinds,  // no ops: marks a point in time
  kParts
};

// The blocks behind those of all micro-batches of a lane that meets others.
enum Shared : std::uint32_t {
  kGather,  // by ModelPart
  kReduce = kGather + kModelParts,
  kWait = kReduce + kModelParts,
  kExchange
};
std::uint32_t gather_of(ModelPart part) {
  return kGather + static_cast<std::uint32_t>(part);
}
std::uint32_t reduce_of(ModelPart part) {
  return kReduce + static_cast<std::uint32_t>(part);
}
std::size_t index_of(ModelPart layer) {
  return static_cast<std::size_t>(kind_of(layer));
}
Part forward_of(ModelPart part) {
  if (is_layer(part)) return static_cast<Part>(kForward + index_of(part));
  return part == ModelPart::head ? kHeadForward : kEmbedForward;
}

std::uint32_t block_of(std::size_t micro_batch, std::size_t part) {
  return static_cast<std::uint32_t>(micro_batch * kParts + part);
}

std::vector<const std::vector<Op>*> pointers(const std::vector<std::vector<Op>>& lists) {
  std::vector<const std::vector<Op>*> to;
  for (const auto& list : lists) to.push_back(&list);
  return to;
}

std::vector<Op> copy_of(const OpList& list) {
  return {list.ops().begin(), list.ops().end()};
}

void push_run(OpLane& lane, std::uint32_t block, int repeat, std::int32_t bucket, std::int32_t layer) {
  if (repeat > 0) lane.runs.push_back({block, static_cast<std::uint32_t>(repeat), bucket, layer});
}

BlockRole role_of(std::size_t part) {
  if (part < kForward)
    return static_cast<BlockRole>(static_cast<std::size_t>(BlockRole::embedding_forward) + part);
  if (part >= kNothing) return BlockRole::none;
  return static_cast<BlockRole>(static_cast<std::size_t>(BlockRole::layer_forward) +
                                (part - kForward) / kLayerKinds);
}

}  // namespace

StepExpander::StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                           bool fold_tp)
    : costs_(costs),
      options_(options),
      tensor_(fold_tp ? 1 : costs.layout().tensor),
      coster_(costs, shard),
      walks_(costs.model(), costs.layout()),
      gradients_(costs) {
  options_.pairs = costs.pairs_micro_batches(options.pairs);
  for (auto& memo : memo_) memo.resize(kMemoSlots);
  const std::size_t pipeline = at(costs.layout().pipeline);
  for (std::size_t v = 0; v < at(walks_.virtual_stages()); ++v) {
    const auto& buckets = gradients_.stages()[v % pipeline].buckets;
    std::size_t before = 0;
    for (std::size_t local = 0; local < v / pipeline; ++local) before += buckets[local].size();
    first_bucket_.push_back(static_cast<std::int32_t>(before));
  }
  std::int32_t layer = 0;
  for (const int layers : layers_of_stages(costs.model(), costs.layout())) {
    first_layer_.push_back(layer);
    layer += layers;
  }
}

const StepExpander::LayerOps& StepExpander::layer_ops(LayerKind kind, std::int64_t tokens, double load) {
  auto& memo = memo_[static_cast<std::size_t>(kind)];
  LayerOps& slot = memo[static_cast<std::size_t>(tokens) % memo.size()];
  if (slot.tokens == tokens && slot.load == load) return slot;
  slot.tokens = tokens;
  slot.load = load;
  costs_.forward_ops(kind, tokens, before_, after_, use_, load);
  slot.forward_before = copy_of(before_);
  slot.forward_after = copy_of(after_);
  costs_.backward_ops(kind, tokens, before_, after_, use_, load);
  slot.backward_before = copy_of(before_);
  slot.backward_after = copy_of(after_);
  return slot;
}

OpProgram StepExpander::expand(const Step& step) {
  const Layout& layout = costs_.layout();
  OpProgram program;
  program.stages = layout.pipeline;
  program.tensor = tensor_;
  program.replicas = layout.data * layout.context;
  int group = 0;
  int place = 0;
  for (const Lane& lane : step.lanes) {
    if (lane.barrier_group != group) place = 0;  // lanes of a later group reuse the GPUs
    group = lane.barrier_group;
    OpLane& out = program.lanes.emplace_back();
    out.context = lane.context;
    out.barrier_group = lane.barrier_group;
    out.first_replica = place;
    out.stages.resize(at(layout.pipeline));
    place += lane.context;
    program.replicas = std::max(program.replicas, place);
    if (!lanes_synchronize(layout) && !lane.micro_batches.empty())
      expand_lane(lane.micro_batches, lane.context, schedule_of(lane.micro_batches, layout, options_),
                  nullptr, out);
  }
  if (lanes_synchronize(layout)) expand_lockstep_groups(step, program);
  for (const GradientSync::StageParts& parts : gradients_.stages()) {
    StageEnd& end = program.ends.emplace_back();
    // What is sharded was reduced with every micro-batch; ZeRO-3 gathers parameters with the next.
    for (std::size_t v = 0; v < parts.buckets.size(); ++v) {
      if (!gradients_.fills_buckets(static_cast<int>(v) * layout.pipeline)) continue;
      for (const Picoseconds t : parts.buckets[v]) end.buckets.push_back(gradients_.has_replicas() ? t : 0);
      // An all-reduce moves everything twice: reduced, then gathered.
      for (const double b : parts.bucket_bytes[v]) end.bucket_bytes.push_back(layout.zero == 0 ? 2 * b : b);
    }
    end.steps = {{OpName::optimizer}, {OpName::dp_all_gather, Stream::dp}};
    end.steps.back().bytes = parts.gather_bytes;
    end.durations = {parts.optimizer, parts.gather};
  }
  return program;
}

void StepExpander::expand_lockstep_groups(const Step& step, OpProgram& program) {
  int last_group = 0;
  for (const Lane& lane : step.lanes) last_group = std::max(last_group, lane.barrier_group);
  for (int group = 0; group <= last_group; ++group)
    for (const LockstepGroup& lockstep :
         make_lockstep_groups(step, group, costs_.layout(), costs_.grid(), options_)) {
      for (const LockstepLane& lane : lockstep.lanes) {
        OpLane& out = program.lanes[at(lane.lane)];
        out.lockstep = program.lockstep_groups;
        out.expert_group = lane.expert_group;
        out.expert_tensor = costs_.layout().expert_tensor_size();
        expand_lane(lane.micro_batches, out.context, lane.schedule, &lockstep, out);
      }
      ++program.lockstep_groups;
    }
}

void StepExpander::expand_lane(std::span<const MicroBatch> micro_batches, int context,
                               const Schedule& schedule, const LockstepGroup* lockstep, OpLane& out) {
  MicroBatchCost cost;
  for (const MicroBatch& micro_batch : micro_batches) {
    coster_.cost(micro_batch, context, cost);
    add_blocks(micro_batch, cost, out);
    for (const auto* send : {&cost.send_next, &cost.send_previous, &cost.send_wrap})
      out.transfers.insert(out.transfers.end(), send->begin(), send->end());
    const Layout& layout = costs_.layout();
    for (int direction = 0; direction < 3; ++direction)
      for (const std::int64_t tokens : cost.sharding.rank_tokens) {
        const bool moves = layout.pipeline > 1 && tokens > 0;
        out.transfer_bytes.push_back(moves ? costs_.pipeline_send(tokens, 0, 1, use_).bytes : 0);
      }
  }
  add_shared_blocks(out);
  add_scheduled_ops(micro_batches, schedule, lockstep, out);
}

// What the collectives with other lanes need beside the layers.
void StepExpander::add_shared_blocks(OpLane& out) {
  shared_block_ = static_cast<std::uint32_t>(out.blocks.size());
  if (out.lockstep == kNoLockstep) return;
  const auto context = at(out.context);
  const auto sharded = [&](const Op& op) {
    OpStep step{op.name, op.stream, SyncGroup::replicas};
    step.background = true;
    step.bytes = op.bytes;
    out.blocks.push_back({{step}, std::vector<Picoseconds>(context, op.duration)});
  };
  for (std::size_t p = 0; p < kModelParts; ++p) sharded(gradients_.gather_of(static_cast<ModelPart>(p)));
  for (std::size_t p = 0; p < kModelParts; ++p) sharded(gradients_.reduce_of(static_cast<ModelPart>(p)));
  OpStep wait{OpName::dp_all_gather, Stream::dp};
  wait.waits = true;
  out.blocks.push_back({{wait}, std::vector<Picoseconds>(context, 0)});
  const OpStep exchange{OpName::ep_all_to_all, Stream::ep, SyncGroup::expert};
  out.blocks.push_back({{exchange, exchange}, std::vector<Picoseconds>(2 * context, 0)});
}

void StepExpander::add_blocks(const MicroBatch& micro_batch, const MicroBatchCost& cost, OpLane& out) {
  const std::size_t first = out.blocks.size();
  out.blocks.resize(first + kParts);
  for (std::size_t part = 0; part < kParts; ++part) {
    out.blocks[first + part].role = role_of(part);
    out.blocks[first + part].micro_batch = static_cast<std::int32_t>(first / kParts);
  }
  const auto c = at(cost.ranks);
  const auto end_block = [&](std::size_t part, const std::function<void(std::int64_t)>& fill) {
    std::vector<std::vector<Op>> lists(c);
    for (std::size_t r = 0; r < c; ++r) {
      if (r > 0 && cost.sharding.rank_tokens[r] == cost.sharding.rank_tokens[r - 1]) {
        lists[r] = lists[r - 1];
        continue;
      }
      before_.clear();
      if (cost.sharding.rank_tokens[r] > 0) fill(cost.sharding.rank_tokens[r]);
      lists[r] = copy_of(before_);
    }
    append_ops(pointers(lists), out.blocks[first + part]);
  };
  end_block(kEmbedForward, [&](std::int64_t n) { costs_.embedding_ops(n, false, before_, use_); });
  end_block(kEmbedBackward, [&](std::int64_t n) { costs_.embedding_ops(n, true, before_, use_); });
  end_block(kHeadForward, [&](std::int64_t n) { costs_.head_forward_ops(n, before_, use_); });
  end_block(kHeadBackward, [&](std::int64_t n) { costs_.head_backward_ops(n, before_, use_); });
  for (int k = 0; k < kLayerKinds; ++k)
    if (costs_.layer_counts()[at(k)] > 0)
      add_layer_blocks(static_cast<LayerKind>(k), micro_batch, cost, out, first);
}

// The synchronisations of a layer's timeline, in order, with what they move.
std::vector<SyncOp> StepExpander::syncs_of(const MicroBatch& micro_batch, const MicroBatchCost& cost,
                                           std::int64_t window, bool backward) {
  const Sharding& sharding = cost.sharding;
  std::int64_t gathered = 0;
  std::int64_t most = 0;
  for (std::size_t r = 0; r < at(cost.ranks); ++r) {
    gathered += sharding.rank_tokens[r] - sharding.rank_local_tokens[r];
    most = std::max(most, sharding.rank_tokens[r]);
  }
  gathered += earlier_tokens(micro_batch, window);
  const double kv_bytes = static_cast<double>(costs_.kv_bytes_per_token());
  switch (costs_.layout().context_comm) {
    case ContextComm::ring: {
      if (cost.ranks == 1) return {{OpName::cp_ring_step, 0}};
      const std::int64_t held = most + (earlier_tokens(micro_batch, 0) + cost.ranks - 1) / cost.ranks;
      const double block = static_cast<double>(held) * kv_bytes;
      std::vector<SyncOp> syncs;
      if (!backward) return {{OpName::cp_ring_step, block}};
      for (const int blocks : ring_backward_sends(cost.ranks))
        syncs.push_back({OpName::cp_ring_step, blocks * block});
      return syncs;
    }
    case ContextComm::ulysses: {
      if (cost.ranks == 1) return {{OpName::cp_all_to_all, 0}};
      const double in = costs_.ulysses_exchange(most, cost.ranks, false, use_).bytes;
      const double out = costs_.ulysses_exchange(most, cost.ranks, true, use_).bytes;
      return {{OpName::cp_all_to_all, backward ? out : in}, {OpName::cp_all_to_all, backward ? in : out}};
    }
    case ContextComm::all_gather:
      break;
  }
  const double bytes = static_cast<double>(gathered) * kv_bytes;
  if (backward) return {{OpName::cp_all_gather, bytes}, {OpName::cp_reduce_scatter, bytes}};
  return {{OpName::cp_all_gather, bytes}};
}

// Of one layer's forward on the CP rank with the most; under Ulysses every rank does an equal share.
double StepExpander::attention_flops(const MicroBatchCost& cost, std::int64_t window) const {
  double most = 0, all = 0;
  for (int r = 0; r < cost.ranks; ++r) {
    double pairs = 0;
    for (const Segment& s : cost.sharding.of_rank(r))
      pairs += window == 0
                   ? static_cast<double>(s.pairs())
                   : causal_pairs(static_cast<double>(s.queries()),
                                  static_cast<double>(s.q_begin - s.kv_begin), static_cast<double>(window));
    most = std::max(most, pairs);
    all += pairs;
  }
  const bool ulysses = costs_.layout().context_comm == ContextComm::ulysses;
  return costs_.causal_attention_flops(ulysses ? all / cost.ranks : most);
}

void StepExpander::add_layer_blocks(LayerKind kind, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                                    OpLane& out, std::size_t first) {
  const auto k = static_cast<std::size_t>(kind);
  const auto c = at(cost.ranks);
  // The memo may overwrite a slot while another rank is looked up, so the lists are copied.
  std::vector<std::vector<Op>> fb(c), fa(c), bb(c), ba(c), ib(c), ia(c), weight(c);
  std::vector<Picoseconds> backward_attention(c);
  // Without any tokens the ranks still take part in the exchanges.
  const auto& held = cost.sharding.rank_tokens;
  const bool only_exchanges = is_moe(kind) && costs_.layout().expert > 1 &&
                              std::all_of(held.begin(), held.end(), [](std::int64_t n) { return n == 0; });
  const Op exchange{OpName::ep_all_to_all, Stream::ep};
  for (std::size_t r = 0; r < c; ++r) {
    const LayerOps& ops = layer_ops(kind, cost.sharding.rank_tokens[r], cost.expert_load);
    fb[r] = ops.forward_before;
    fa[r] = ops.forward_after;
    bb[r] = ops.backward_before;
    ba[r] = ops.backward_after;
    if (only_exchanges) {
      fa[r].assign(costs_.exchanges(false), exchange);
      bb[r].assign(costs_.exchanges(true), exchange);
    }
    ib[r] = without_weight_gradients(bb[r]);
    ia[r] = without_weight_gradients(ba[r]);
    weight[r] = only_weight_gradients(bb[r]);
    const std::vector<Op> later = only_weight_gradients(ba[r]);
    weight[r].insert(weight[r].end(), later.begin(), later.end());
    constexpr auto kCompute = static_cast<std::size_t>(Stream::compute);
    backward_attention[r] =
        cost.compute_backward[k][r] - run_time(bb[r]).busy[kCompute] - run_time(ba[r]).busy[kCompute];
  }
  const std::int64_t window = costs_.window_of(kind);
  const std::vector<SyncOp> forward_syncs = syncs_of(micro_batch, cost, window, false);
  const std::vector<SyncOp> backward_syncs = syncs_of(micro_batch, cost, window, true);
  const double flops = attention_flops(cost, window);
  // Backward: five matrix products where the forward has two; selective recompute repeats the forward.
  const double backward_flops = (costs_.layout().repeats(RecomputeModule::core_attn) ? 3.5 : 2.5) * flops;
  append_layer(pointers(fb), pointers(fa), cost.forward[k], cost.attention_forward[mask_of(kind)], flops,
               forward_syncs, out.blocks[first + kForward + k]);
  append_layer(pointers(bb), pointers(ba), cost.backward[k], backward_attention, backward_flops,
               backward_syncs, out.blocks[first + kBackward + k]);
  append_layer(pointers(ib), pointers(ia), cost.input_gradient[k], backward_attention, backward_flops,
               backward_syncs, out.blocks[first + kInputGradient + k]);
  append_ops(pointers(weight), out.blocks[first + kWeightGradient + k]);
}

// The walk over an op's parts as runs of blocks: what all kinds of ops have in common.
struct StepExpander::Runs {
  const StepExpander& expander;
  OpLane& out;
  std::size_t micro_batch;
  std::int32_t first_layer;         // the virtual stage's
  std::int32_t bucket = kNoBucket;  // the virtual stage's first, if the op fills its buckets
  bool reduces = false;             // gradients, as soon as they are there

  void gather(ModelPart part) const { expander.push_shared(out, gather_of(part)); }
  void wait() const { expander.push_shared(out, kWait); }
  void done(const WalkPart& part) const {
    if (reduces) expander.push_shared(out, reduce_of(part.part));
  }
  // `index`: of the first of `repeat` layers among those of the part, in the order of the walk. `local`:
  // which of the virtual stage's layers that is.
  void push(std::size_t block, const WalkPart& part, int repeat = 1, int index = 0,
            int local = kNoLayer) const {
    push_run(out, block_of(micro_batch, block), repeat,
             bucket == kNoBucket ? kNoBucket : bucket + part.bucket + index, layer(local));
  }
  [[nodiscard]] std::int32_t layer(int local) const {
    return local == kNoLayer ? kNoLayer : first_layer + local;
  }
  static int last_of(const WalkPart& part) { return part.first + part.layers - 1; }
};

struct StepExpander::ForwardRuns : Runs {
  void work(const WalkPart& part) const {
    push(forward_of(part.part), part, part.layers, 0, is_layer(part.part) ? part.first : kNoLayer);
  }
};

// From the last layer to the first; the recomputed ones are the stage's first.
struct StepExpander::BackwardRuns : Runs {
  int recomputed, most_recomputed;  // by this lane, by any that it is synchronized with
  bool split;

  void work(const WalkPart& part) const {
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
  void recompute(const WalkPart& part, int local) const {
    if (local < recomputed)
      push_run(out, block_of(micro_batch, kForward + index_of(part.part)), 1, kNoBucket, layer(local));
    else if (is_moe(kind_of(part.part)) && expander.costs_.layout().expert > 1)
      expander.push_shared(out, kExchange);
  }
};

// A forward and a backward side by side. Layers in a row that run alike are one run.
struct StepExpander::PairRuns {
  ForwardRuns forward_runs;
  BackwardRuns backward_runs;
  std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds>&
      blocks;  // of layers side by side; -1: none yet

  void forward(const WalkPart& part) const { forward_runs.work(part); }
  void backward(const WalkPart& part) const { backward_runs.work(part); }
  void done(const WalkPart& part) const { backward_runs.done(part); }
  void both(const WalkPart& f, const WalkPart& b) const {
    OpLane& out = forward_runs.out;
    if (b.first < backward_runs.most_recomputed) backward_runs.recompute(b, b.first);
    const std::size_t of_forward = index_of(f.part), of_backward = index_of(b.part);
    std::int64_t& block = blocks[of_forward][of_backward];
    if (block < 0) {
      block = static_cast<std::int64_t>(out.blocks.size());
      out.blocks.push_back(
          pair_of_layers(out.blocks[block_of(forward_runs.micro_batch, kForward + of_forward)],
                         out.blocks[block_of(backward_runs.micro_batch, kBackward + of_backward)]));
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
  void work(const WalkPart& part) const {
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
  const auto runs_of = [&](const ScheduleOp& op, std::int32_t fills, bool reduces) {
    return Runs{*this, lane.out, at(op.micro_batch), first_layer_[at(virtual_stage(op))], fills, reduces};
  };
  const auto backward_runs = [&](std::size_t index) {
    const ScheduleOp& op = ops[index];
    const int recomputed =
        walks_.recomputed_layers(virtual_stage(op), lane.micro_batches[at(op.micro_batch)]);
    const int most =
        lane.lockstep == nullptr ? recomputed : most_recomputed(*lane.lockstep, walks_, stage, index);
    return BackwardRuns{runs_of(op, bucket, reducing), recomputed, most, lane.split};
  };
  const ScheduleOp& op = ops[position];
  const int v = virtual_stage(op);
  const bool each = gradients_.shards_parameters() || reducing;
  if (op.with_next) {
    std::array<std::array<std::int64_t, kLayerKinds>, kLayerKinds> blocks{};
    for (auto& of_forward : blocks) of_forward.fill(-1);
    walk_pair(walks_.forward(v), walks_.backward(virtual_stage(ops[position + 1])),
              PairRuns{ForwardRuns{runs_of(op, kNoBucket, false)}, backward_runs(position + 1), blocks});
  } else if (op.kind == OpKind::W) {
    walk_stage(walks_.weights(v), each, WeightRuns{runs_of(op, bucket, reducing)});
  } else if (op.kind == OpKind::B) {
    walk_stage(walks_.backward(v), each, backward_runs(position));
  } else {
    walk_stage(walks_.forward(v), each, ForwardRuns{runs_of(op, bucket, reducing)});
  }
}

void StepExpander::add_scheduled_ops(std::span<const MicroBatch> micro_batches, const Schedule& schedule,
                                     const LockstepGroup* lockstep, OpLane& out) {
  const int pipeline = costs_.layout().pipeline;
  const int virtual_stages = walks_.virtual_stages();
  enum Class { kFirst, kAgain, kBack, kClasses };  // F and D; R; B: what feeds the same class next door
  std::vector<std::int32_t> scheduled_of(micro_batches.size() * at(virtual_stages) * kClasses, kNoInput);
  const auto slot = [&](std::int32_t j, int v, Class c) {
    return (at(j) * at(virtual_stages) + at(v)) * kClasses + static_cast<std::size_t>(c);
  };
  const auto class_of = [](OpKind kind) {
    return kind == OpKind::B ? kBack : kind == OpKind::R ? kAgain : kFirst;
  };

  const Expanding lane{micro_batches, schedule, lockstep, splits_backward(schedule), out};
  const OpKind gradient_op = lane.split ? OpKind::W : OpKind::B;
  std::vector<std::int32_t> last_gradient(at(virtual_stages), -1);
  for (int s = 0; s < pipeline; ++s)
    for (std::size_t i = 0; i < schedule.ops[at(s)].size(); ++i) {
      const ScheduleOp& op = schedule.ops[at(s)][i];
      const int v = op.virtual_stage * pipeline + s;
      if (op.kind == gradient_op) last_gradient[at(v)] = op.micro_batch;
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
        const bool releases =
            gradient.kind == gradient_op && last_gradient[at(of)] == gradient.micro_batch &&
            gradients_.fills_buckets(of) &&
            (lockstep == nullptr || lockstep->ends_step || !gradients_.reduces_each_micro_batch());
        const std::int32_t bucket = releases ? first_bucket_[at(of)] : kNoBucket;
        if (reducing) push_shared(out, kWait);
        reducing = gradient.kind == gradient_op && reduces_at_once(bucket);
        add_runs(lane, s, i, bucket, reducing);
        if (reducing && i + (op.with_next ? 2 : 1) == ops.size()) push_shared(out, kWait);
      }
      scheduled.run_count = static_cast<std::uint32_t>(out.runs.size()) - scheduled.first_run;

      // Transfers of a micro-batch: to the next stage, to the previous one, around the ring of virtual
      // stages.
      const auto transfer = [&](int direction) {
        return static_cast<std::int64_t>((j * 3 + at(direction)) * at(out.context));
      };
      const int step = op.kind == OpKind::B ? -1 : 1;
      const auto hop = [&](int sender) {
        const bool wraps = step > 0 ? sender + 1 == pipeline : sender == 0;
        return transfer(wraps ? 2 : step > 0 ? 0 : 1);
      };
      const int from = v - step;
      if (op.kind != OpKind::W && from >= 0 && from < virtual_stages) {
        scheduled.input_stage = from % pipeline;
        scheduled.input_op = scheduled_of[slot(op.micro_batch, from, class_of(op.kind))];
        scheduled.transfer = hop(scheduled.input_stage);
      }
      const int to = v + step;
      if (options_.blocking_sends && op.kind != OpKind::W && to >= 0 && to < virtual_stages && pipeline > 1)
        scheduled.blocking_send = hop(s);
      out.stages[at(s)].push_back(scheduled);
    }
  }
}

}  // namespace equipoise
