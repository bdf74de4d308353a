#include "sim/step/expansion.h"

#include <algorithm>
#include <initializer_list>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {

constexpr std::size_t kMemoSlots = 128;

static std::vector<Op> copy_of(const OpList& list) {
  return {list.ops().begin(), list.ops().end()};
}

static std::vector<Op> repeated_of(std::vector<Op> ops) {
  std::erase_if(ops, [](const Op& op) { return op.once; });
  return ops;
}

BlockRole StepExpander::role_of(std::size_t part) {
  if (part < kForward) return static_cast<BlockRole>(at(BlockRole::embedding_forward) + part);
  if (part >= kNothing) return BlockRole::none;
  if (part >= kRepeat) return BlockRole::layer_forward;
  return static_cast<BlockRole>(at(BlockRole::layer_forward) + (part - kForward) / kLayerKinds);
}

StepExpander::StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                           bool fold_tp)
    : costs_(costs),
      options_(options),
      tensor_(fold_tp ? 1 : costs.layout().tensor),
      coster_(costs, shard),
      orders_(costs.model(), costs.layout()),
      gradients_(costs) {
  options_.pairs = costs.basis.pairs_micro_batches(options.pairs);
  for (auto& memo : memo_) memo.resize(kMemoSlots);
  end_memo_.resize(kMemoSlots);
  for (const int layer : first_layers(costs.model(), costs.layout())) {
    first_layer_.push_back(layer);
    first_of_backward_.push_back(std::max(layer, costs.model().training.frozen_layers));
  }
}

// A backward in its two halves.
void StepExpander::split_backward(LayerOps& ops) {
  ops.input_before = without_weight_gradients(ops.backward_before);
  ops.input_after = without_weight_gradients(ops.backward_after);
  ops.weights = only_weight_gradients(ops.backward_before);
  const std::vector<Op> later = only_weight_gradients(ops.backward_after);
  ops.weights.insert(ops.weights.end(), later.begin(), later.end());
}

// `arriving`: only of layers with experts.
std::shared_ptr<const StepExpander::LayerOps> StepExpander::layer_ops(LayerKind kind, const Held& held,
                                                                      const ExpertArrivals& arriving) {
  auto& memo = memo_[at(kind)];
  std::shared_ptr<const LayerOps>& slot =
      memo[is_moe(kind) ? memo_slot(held.tokens, arriving, memo.size()) : at(held.tokens) % memo.size()];
  if (slot && slot->held == held && slot->arriving == arriving) return slot;
  const auto made = std::make_shared<LayerOps>();
  made->held = held;
  made->arriving = arriving;
  costs_.layers.forward(kind, held.tokens, arriving, before_, after_, use_, held.documents);
  made->forward_before = copy_of(before_);
  made->forward_after = copy_of(after_);
  made->again_before = repeated_of(made->forward_before);
  made->again_after = repeated_of(made->forward_after);
  costs_.layers.backward(kind, held.tokens, arriving, before_, after_, use_, held.documents);
  made->backward_before = copy_of(before_);
  made->backward_after = copy_of(after_);
  split_backward(*made);
  return slot = made;
}

std::shared_ptr<const StepExpander::EndOps> StepExpander::end_ops(std::int64_t tokens) {
  std::shared_ptr<const EndOps>& slot = end_memo_[at(tokens) % end_memo_.size()];
  if (slot && slot->tokens == tokens) return slot;
  const auto made = std::make_shared<EndOps>();
  made->tokens = tokens;
  if (tokens > 0) {
    costs_.ends.embedding(tokens, false, before_, use_);
    made->lists[0] = copy_of(before_);
    costs_.ends.embedding(tokens, true, before_, use_);
    made->lists[1] = copy_of(before_);
    costs_.ends.head_forward(tokens, before_, use_);
    made->lists[2] = copy_of(before_);
    costs_.ends.head_backward(tokens, before_, use_);
    made->lists[3] = copy_of(before_);
  }
  return slot = made;
}

OpProgram StepExpander::expand(const Step& step) {
  const Layout& layout = costs_.layout();
  OpProgram program;
  begin(step, program);
  if (lanes_synchronize(layout)) {
    expand_lockstep_groups(step, program);
  } else {
    for (std::size_t l = 0; l < step.lanes.size(); ++l)
      if (const Lane& lane = step.lanes[l]; !lane.micro_batches.empty())
        add_costed({l, lane.micro_batches, {}, schedule_of(lane.micro_batches, layout, options_)}, program);
  }
  finish(program);
  return program;
}

void StepExpander::begin(const Step& step, OpProgram& program) {
  const Layout& layout = costs_.layout();
  program.stages = layout.pipeline;
  program.tensor = tensor_;
  program.replicas = layout.data * layout.context;
  program.lockstep_groups = 0;
  program.lanes.resize(step.lanes.size());
  int group = 0;
  int place = 0;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const Lane& lane = step.lanes[l];
    if (lane.barrier_group != group) place = 0;  // lanes of a later group reuse the GPUs
    group = lane.barrier_group;
    OpLane& out = program.lanes[l];
    out.context = lane.context;
    out.barrier_group = lane.barrier_group;
    out.first_replica = place;
    out.lockstep = kNoLockstep;
    out.expert_group.clear();
    out.expert_tensor = 0;
    out.runs.clear();
    out.transfers.clear();
    out.transfer_bytes.clear();
    out.stages.resize(at(layout.pipeline));
    for (std::vector<ScheduledOp>& stage : out.stages) stage.clear();
    if (lane.micro_batches.empty()) out.blocks.clear();
    place += lane.context;
    program.replicas = std::max(program.replicas, place);
  }
}

void StepExpander::finish(OpProgram& program) const {
  program.ends = gradients_.ends();
}

void StepExpander::expand_lockstep_groups(const Step& step, OpProgram& program) {
  int number = 0;
  run_barrier_groups(step.lanes, [&](int group, Picoseconds begin) {
    for (LockstepGroup& lockstep :
         make_lockstep_groups(step, group, costs_.layout(), costs_.grid(), options_)) {
      const std::vector<std::vector<MicroBatchCost>> costs =
          cost_lockstep_group(lockstep, coster_, costs_, orders_);
      for (std::size_t l = 0; l < lockstep.lanes.size(); ++l) {
        const LockstepLane& lane = lockstep.lanes[l];
        add_lane({at(lane.lane), lane.micro_batches, costs[l], lane.schedule, &lockstep, number}, program);
      }
      ++number;
    }
    return begin;
  });
}

// Costs the micro-batches of a lane that waits for no other.
void StepExpander::add_costed(const CostedLane& lane, OpProgram& program) {
  std::vector<MicroBatchCost> costs(lane.micro_batches.size());
  for (std::size_t j = 0; j < costs.size(); ++j)
    coster_.cost(lane.micro_batches[j], program.lanes[lane.lane].context, costs[j]);
  add_lane({lane.lane, lane.micro_batches, costs, lane.schedule}, program);
}

void StepExpander::add_lane(const CostedLane& lane, OpProgram& program) {
  OpLane& out = program.lanes[lane.lane];
  const LaneArrivals* arrivals = nullptr;
  if (lane.lockstep != nullptr) {
    const auto plan =
        std::ranges::find(lane.lockstep->lanes, lane.lane, [](const LockstepLane& l) { return at(l.lane); });
    out.lockstep = lane.group;
    out.expert_group = plan->expert_group;
    out.expert_tensor = costs_.layout().expert_tensor_size();
    arrivals = &plan->arrivals;
    program.lockstep_groups = std::max(program.lockstep_groups, lane.group + 1);
  }
  blocks_ = 0;
  const MicroBatch nothing;
  for (std::size_t e = 0; e < lane.costs.size(); ++e) {
    const std::int32_t number =
        arrivals == nullptr ? static_cast<std::int32_t>(e) : arrivals->entries[e].micro_batch;
    add_blocks(lane.costs[e], number == kNoMicroBatch ? nothing : lane.micro_batches[at(number)], number,
               out);
    if (e < lane.micro_batches.size()) add_transfers(lane.costs[e], out);
  }
  add_shared_blocks(out);
  add_scheduled_ops(lane, arrivals, out);
  out.blocks.resize(blocks_);
}

void StepExpander::add_transfers(const MicroBatchCost& cost, OpLane& out) {
  for (const auto* send : {&cost.send_next, &cost.send_previous, &cost.send_wrap})
    out.transfers.insert(out.transfers.end(), send->begin(), send->end());
  for (int direction = 0; direction < 3; ++direction)
    for (const std::int64_t tokens : cost.sharding.rank_tokens) {
      const bool moves = costs_.layout().pipeline > 1 && tokens > 0;
      out.transfer_bytes.push_back(moves ? costs_.kernels.pipeline_send(tokens, 0, 1, use_).bytes : 0);
    }
}

// An empty block behind those that the lane has; one of an earlier step's gives its memory.
OpBlock& StepExpander::add_block(OpLane& out) {
  if (blocks_ == out.blocks.size()) out.blocks.emplace_back();
  OpBlock& block = out.blocks[blocks_++];
  block.steps.clear();
  block.durations.clear();
  block.role = BlockRole::none;
  block.micro_batch = kNoMicroBatch;
  return block;
}

// What the collectives with other lanes need beside the layers.
void StepExpander::add_shared_blocks(OpLane& out) {
  shared_block_ = static_cast<std::uint32_t>(blocks_);
  if (out.lockstep == kNoLockstep) return;
  const auto context = at(out.context);
  const auto add = [&](std::initializer_list<OpStep> steps, Picoseconds duration) {
    OpBlock& block = add_block(out);
    block.steps = steps;
    block.durations.assign(steps.size() * context, duration);
  };
  const auto sharded = [&](const Op& op) {
    OpStep step{op.name, op.stream, SyncGroup::replicas};
    step.background = true;
    step.bytes = op.bytes;
    add({step}, op.duration);
  };
  for (std::size_t p = 0; p < kModelParts; ++p) sharded(gradients_.gather_of(static_cast<ModelPart>(p)));
  for (std::size_t p = 0; p < kModelParts; ++p) sharded(gradients_.reduce_of(static_cast<ModelPart>(p)));
  OpStep wait{OpName::dp_all_gather, Stream::dp};
  wait.waits = true;
  add({wait}, 0);
}

void StepExpander::add_blocks(const MicroBatchCost& cost, const MicroBatch& micro_batch, std::int32_t number,
                              OpLane& out) {
  const std::size_t first = blocks_;
  for (std::size_t part = 0; part < kBlockKinds; ++part) {
    OpBlock& block = add_block(out);
    block.role = role_of(part);
    block.micro_batch = number;
  }
  add_end_blocks(cost, out, first);
  for (int k = 0; k < kLayerKinds; ++k)
    if (costs_.layer_counts()[at(k)] > 0)
      add_layer_blocks(static_cast<LayerKind>(k), micro_batch, cost, out, first);
}

void StepExpander::add_end_blocks(const MicroBatchCost& cost, OpLane& out, std::size_t first) {
  rank_ends_.clear();
  for (const std::int64_t tokens : cost.sharding.rank_tokens)
    rank_ends_.push_back(!rank_ends_.empty() && rank_ends_.back()->tokens == tokens ? rank_ends_.back()
                                                                                    : end_ops(tokens));
  for (const std::size_t part : {kEmbedForward, kEmbedBackward, kHeadForward, kHeadBackward}) {
    before_lists_.clear();
    for (const auto& ends : rank_ends_) before_lists_.push_back(&ends->lists[part - kEmbedForward]);
    append_ops(before_lists_, out.blocks[first + part]);
  }
}

// Of one layer's forward on the CP rank with the most; ranks that share out heads do equal shares.
double StepExpander::attention_flops(const MicroBatchCost& cost, const ExchangedTokens& tokens,
                                     std::int64_t window) const {
  if (tokens.tasks != nullptr) {
    std::int64_t most = 0;
    for (std::size_t r = 0; r < at(cost.ranks); ++r) {
      std::int64_t pairs = 0;
      for (int n = 0; n < tokens.tasks->nano_batches; ++n) pairs += tokens.tasks->parts[at(n)].pairs[r];
      most = std::max(most, pairs);
    }
    return costs_.attention.flops(as_double(most));
  }
  const int shares = context_form(costs_).head_shares(costs_.layout(), cost.ranks);
  double most = 0, together = 0;
  for (int r = 0; r < cost.ranks; ++r) {
    double pairs = 0;
    for (const Segment& s : cost.seen_by(window).of_rank(r))
      pairs += window == 0
                   ? static_cast<double>(s.pairs())
                   : causal_pairs(static_cast<double>(s.queries()),
                                  static_cast<double>(s.q_begin - s.kv_begin), static_cast<double>(window));
    together = (r % shares == 0 ? 0 : together) + pairs;
    most = std::max(most, together);
  }
  return costs_.attention.flops(most / shares);
}

// Where no tokens are and none arrive the ranks still take part in a layer's exchanges.
std::shared_ptr<const StepExpander::LayerOps> StepExpander::only_exchanges() const {
  const Op exchange{OpName::ep_all_to_all, Stream::ep};
  const auto made = std::make_shared<LayerOps>();
  made->forward_after.assign(costs_.experts.exchanges(false), exchange);
  made->backward_before.assign(costs_.experts.exchanges(true), exchange);
  split_backward(*made);
  return made;
}

// `half`: of the two nano-batches, if there are two.
void StepExpander::find_rank_ops(LayerKind kind, const MicroBatchCost& cost, std::size_t half,
                                 std::vector<std::shared_ptr<const LayerOps>>& out) {
  out.clear();
  bool idle = is_moe(kind) && costs_.layout().expert > 1;
  for (std::size_t r = 0; r < held_.size(); ++r)
    idle = idle && held_[r][half].tokens == 0 && cost.arriving[r].tokens == 0;
  if (idle) {
    out.assign(held_.size(), only_exchanges());
    return;
  }
  for (std::size_t r = 0; r < held_.size(); ++r) {
    const Held& held = held_[r][half];
    const ExpertArrivals arriving = is_moe(kind) ? cost.arriving[r] : ExpertArrivals{};
    const bool as_before = r > 0 && out.back()->held == held && out.back()->arriving == arriving;
    out.push_back(as_before ? out.back() : layer_ops(kind, held, arriving));
  }
}

void StepExpander::add_layer_blocks(LayerKind kind, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                                    OpLane& out, std::size_t begin) {
  const auto k = at(kind);
  const bool halves = costs_.layout().nano_batches_of(cost.ranks) == 2;
  count_held(costs_.basis, micro_batch, cost.sharding, held_);
  for (std::size_t half = 0; half < (halves ? 2 : 1); ++half)
    find_rank_ops(kind, cost, half, rank_ops_[half]);
  const std::vector<Picoseconds>& backward_attention = cost.attention_backward[mask_of(kind)];
  const std::int64_t window = costs_.attention.window_of(kind);
  exchanges_.forward.clear();
  exchanges_.backward.clear();
  const ExchangedTokens tokens =
      exchanged_tokens(micro_batch, cost.seen_by(window), window, costs_, cost.pool.get());
  if (cost.ranks > 1)
    context_form(costs_).exchange(
        costs_, tokens, cost.pool ? cost.pool->group : context_group(costs_, cost.ranks), exchanges_, use_);
  if (cost.evened[0].attention > 0) exchanges_.forward = {cost.evened[0].exchange};
  if (cost.evened[1].attention > 0) exchanges_.backward = {cost.evened[1].exchange};
  const double flops = attention_flops(cost, tokens, window);
  // Backward: five matrix products where the forward has two; selective recompute repeats the forward.
  const double backward_flops = (costs_.layout().repeats(RecomputeModule::core_attn) ? 3.5 : 2.5) * flops;
  const auto lists = [&](std::vector<Op> LayerOps::*list, const auto& rank_ops,
                         std::vector<const std::vector<Op>*>& out_lists) {
    out_lists.clear();
    for (const auto& ops : rank_ops) out_lists.push_back(&(ops.get()->*list));
    return RankOps(out_lists);
  };
  // A backward goes through the nano-batches from the last to the first.
  const auto &first = rank_ops_[0], &last = rank_ops_[halves ? 1 : 0];
  append_layer(lists(&LayerOps::forward_before, first, before_lists_),
               lists(&LayerOps::forward_after, last, after_lists_), cost.forward[k],
               cost.attention_forward[mask_of(kind)], flops, exchanges_.forward, halves,
               out.blocks[begin + kForward + k]);
  if (costs_.basis.repeats_less() && !halves && !is_moe(kind))
    append_layer(lists(&LayerOps::again_before, first, before_lists_),
                 lists(&LayerOps::again_after, first, after_lists_), cost.again[k],
                 cost.attention_forward[mask_of(kind)], flops, exchanges_.forward, halves,
                 out.blocks[begin + kRepeat + k]);
  append_layer(lists(&LayerOps::backward_before, last, before_lists_),
               lists(&LayerOps::backward_after, first, after_lists_), cost.backward[k], backward_attention,
               backward_flops, exchanges_.backward, halves, out.blocks[begin + kBackward + k]);
  append_layer(lists(&LayerOps::input_before, last, before_lists_),
               lists(&LayerOps::input_after, first, after_lists_), cost.input_gradient[k], backward_attention,
               backward_flops, exchanges_.backward, halves, out.blocks[begin + kInputGradient + k]);
  append_ops(lists(&LayerOps::weights, last, before_lists_), out.blocks[begin + kWeightGradient + k]);
  if (halves)
    append_ops(lists(&LayerOps::weights, first, before_lists_), out.blocks[begin + kWeightGradient + k]);
}

}  // namespace equipoise
