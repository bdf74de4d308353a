#include "sim/step/lane_blocks.h"

#include <algorithm>
#include <initializer_list>

#include "policies/base/index.h"
#include "sim/step/layer_block.h"

namespace equipoise {

constexpr std::size_t kMemoSlots = 128;

static std::vector<Op> copy_of(const OpList& list) {
  return {list.ops().begin(), list.ops().end()};
}

static std::vector<Op> repeated_of(std::vector<Op> ops) {
  std::erase_if(ops, [](const Op& op) { return op.once; });
  return ops;
}

LaneBlocks::LaneBlocks(const LayerCosts& costs, const GradientSync& gradients)
    : costs_(costs), gradients_(gradients) {
  for (auto& memo : memo_) memo.resize(kMemoSlots);
  end_memo_.resize(kMemoSlots);
}

void LaneBlocks::begin_lane(OpLane& out) {
  out_ = &out;
  count_ = 0;
}

BlockRole LaneBlocks::role_of(std::size_t part) {
  if (part < kForward) return static_cast<BlockRole>(at(BlockRole::embedding_forward) + part);
  if (part >= kNothing) return BlockRole::none;
  if (part >= kRepeat) return BlockRole::layer_forward;
  return static_cast<BlockRole>(at(BlockRole::layer_forward) + (part - kForward) / kLayerKinds);
}

// Appends an empty block, in the memory of an earlier step's block where there is one.
OpBlock& LaneBlocks::add_block() {
  if (count_ == out_->blocks.size()) out_->blocks.emplace_back();
  OpBlock& block = out_->blocks[count_++];
  block.steps.clear();
  block.durations.clear();
  block.rank_work.clear();
  block.role = BlockRole::none;
  block.micro_batch = kNoMicroBatch;
  return block;
}

std::uint32_t LaneBlocks::add_pair(std::uint32_t forward, std::uint32_t backward) {
  add_block() = pair_of_layers(out_->blocks[forward], out_->blocks[backward]);
  return static_cast<std::uint32_t>(count_ - 1);
}

// Adds the blocks that a lane runs with other lanes: gathers, reductions, and waits for them.
void LaneBlocks::add_shared() {
  first_shared_ = static_cast<std::uint32_t>(count_);
  if (out_->lockstep == kNoLockstep) return;
  const auto context = at(out_->context);
  const auto add = [&](std::initializer_list<OpStep> steps, Picoseconds duration) {
    OpBlock& block = add_block();
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

void LaneBlocks::add_micro_batch(const MicroBatchCost& cost, const MicroBatch& micro_batch,
                                 std::int32_t number) {
  const std::size_t first = count_;
  for (std::size_t part = 0; part < kBlockKinds; ++part) {
    OpBlock& block = add_block();
    block.role = role_of(part);
    block.micro_batch = number;
  }
  add_end_blocks(cost, first);
  count_held(costs_.basis, micro_batch, cost.sharding, held_);
  for (int m = 0; m < kMixers; ++m) {
    const auto mixer = static_cast<Mixer>(m);
    if (costs_.basis.mixers[at(m)] == 0) continue;
    find_mixer(mixer, micro_batch, cost);
    for (int k = 0; k < kLayerKinds; ++k)
      if (const auto kind = static_cast<LayerKind>(k);
          mixer_of(kind) == mixer && costs_.layer_counts()[at(k)] > 0)
        add_layer_blocks(kind, cost, first);
  }
}

void LaneBlocks::split_backward(LayerOps& ops) {
  ops.input_before = without_weight_gradients(ops.backward_before);
  ops.input_after = without_weight_gradients(ops.backward_after);
  ops.weights = only_weight_gradients(ops.backward_before);
  const std::vector<Op> later = only_weight_gradients(ops.backward_after);
  ops.weights.insert(ops.weights.end(), later.begin(), later.end());
}

// `arriving` matters only for layers with experts.
std::shared_ptr<const LaneBlocks::LayerOps> LaneBlocks::layer_ops(LayerKind kind, const Held& held,
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

std::shared_ptr<const LaneBlocks::EndOps> LaneBlocks::end_ops(std::int64_t tokens) {
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

void LaneBlocks::add_end_blocks(const MicroBatchCost& cost, std::size_t first) {
  rank_ends_.clear();
  for (const std::int64_t tokens : cost.sharding.rank_tokens)
    rank_ends_.push_back(!rank_ends_.empty() && rank_ends_.back()->tokens == tokens ? rank_ends_.back()
                                                                                    : end_ops(tokens));
  for (const std::size_t part : {kEmbedForward, kEmbedBackward, kHeadForward, kHeadBackward}) {
    before_lists_.clear();
    for (const auto& ends : rank_ends_) before_lists_.push_back(&ends->lists[part - kEmbedForward]);
    append_ops(before_lists_, out_->blocks[first + part]);
  }
}

// FLOPs of one layer's attention on each CP rank. Ranks that split heads do equal shares.
LaneBlocks::PassFlops LaneBlocks::attention_flops(const MicroBatchCost& cost, const ExchangedTokens& tokens,
                                                  std::int64_t window) const {
  PassFlops flops{std::vector<double>(at(cost.ranks), 0), std::vector<double>(at(cost.ranks), 0)};
  const auto set = [&](int first, int end, double pairs, double scored) {
    for (int r = first; r < end; ++r) {
      flops.forward[at(r)] = costs_.attention.forward_flops(pairs, scored);
      flops.backward[at(r)] = costs_.attention.backward_flops(pairs, scored);
    }
  };
  if (tokens.tasks != nullptr) {
    for (int r = 0; r < cost.ranks; ++r) {
      std::int64_t pairs = 0;
      for (int n = 0; n < tokens.tasks->nano_batches; ++n) pairs += tokens.tasks->parts[at(n)].pairs[at(r)];
      set(r, r + 1, as_double(pairs), 0);
    }
    return flops;
  }
  const int shares = context_form(costs_).head_shares(costs_.layout(), cost.ranks);
  const bool scores = costs_.model().indexer && window == 0;
  const std::int64_t attended = scores ? costs_.model().indexer->top_keys : window;
  double together = 0, scored = 0;
  for (int r = 0; r < cost.ranks; ++r) {
    if (r % shares == 0) together = scored = 0;
    for (const Segment& s : cost.seen_by(window).of_rank(r)) {
      const auto pairs = static_cast<double>(s.pairs());
      together += attended == 0 ? pairs
                                : causal_pairs(static_cast<double>(s.queries()),
                                               static_cast<double>(s.q_begin - s.kv_begin),
                                               static_cast<double>(attended));
      if (scores) scored += pairs;
    }
    if (r % shares == shares - 1 || r + 1 == cost.ranks)
      set(r - r % shares, r + 1, together / shares, scored / shares);
  }
  return flops;
}

// Ranks without tokens still take part in a layer's exchanges.
std::shared_ptr<const LaneBlocks::LayerOps> LaneBlocks::only_exchanges() const {
  const Op exchange{OpName::ep_all_to_all, Stream::ep};
  const auto made = std::make_shared<LayerOps>();
  made->forward_after.assign(costs_.experts.exchanges(false), exchange);
  made->backward_before.assign(costs_.experts.exchanges(true), exchange);
  split_backward(*made);
  return made;
}

// `half` says which of the two nano-batches, if there are two.
void LaneBlocks::find_rank_ops(LayerKind kind, const MicroBatchCost& cost, std::size_t half,
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

void LaneBlocks::find_mixer(Mixer mixer, const MicroBatch& micro_batch, const MicroBatchCost& cost) {
  const std::int64_t window = costs_.attention.window_of(mixer);
  exchanges_.clear();
  const ExchangedTokens tokens =
      exchanged_tokens(micro_batch, cost.seen_by(window), mixer, costs_, cost.pool.get());
  const auto exchange = [&](const ContextForm& form) {
    if (cost.ranks == 1) return;
    const ContextGroup group = context_group(costs_, cost.ranks, cost.pool.get());
    add_exchanges(form, costs_, tokens, group, exchanges_, use_);
  };
  if (attends(mixer)) exchange(context_form(costs_));
  if (recurs(mixer)) exchange(kRecurrenceForm);
  if (cost.evened[0].attention > 0) exchanges_.forward = {cost.evened[0].exchange};
  if (cost.evened[1].attention > 0) exchanges_.backward = {cost.evened[1].exchange};
  forward_kernels_.clear();
  backward_kernels_.clear();
  const auto add = [&](OpName name, Mixer of, PassFlops flops) {
    forward_kernels_.push_back({name, cost.attention_forward[at(of)], std::move(flops.forward)});
    backward_kernels_.push_back({name, cost.attention_backward[at(of)], std::move(flops.backward)});
  };
  if (attends(mixer)) {
    PassFlops flops = attention_flops(cost, tokens, window);
    if (repeats_mixer(costs_.layout(), mixer))  // selective recompute, which repeats the forward
      for (std::size_t r = 0; r < flops.forward.size(); ++r) flops.backward[r] += flops.forward[r];
    add(OpName::attention, mixer, std::move(flops));
  }
  if (recurs(mixer)) {
    // The backward repeats its forward, and has two products for each of the forward's.
    const double flops = costs_.recurrence.flops(as_double(sum_of(cost.sharding.rank_tokens))) / cost.ranks;
    add(OpName::recurrence, Mixer::recurrence,
        {std::vector<double>(at(cost.ranks), flops), std::vector<double>(at(cost.ranks), 3 * flops)});
  }
}

void LaneBlocks::add_layer_blocks(LayerKind kind, const MicroBatchCost& cost, std::size_t begin) {
  const auto k = at(kind);
  const bool halves = costs_.layout().nano_batches_of(cost.ranks) == 2;
  for (std::size_t half = 0; half < (halves ? 2 : 1); ++half)
    find_rank_ops(kind, cost, half, rank_ops_[half]);
  const auto lists = [&](std::vector<Op> LayerOps::*list, const auto& rank_ops,
                         std::vector<const std::vector<Op>*>& out_lists) {
    out_lists.clear();
    for (const auto& ops : rank_ops) out_lists.push_back(&(ops.get()->*list));
    return RankOps(out_lists);
  };
  // A backward goes through the nano-batches from the last to the first.
  const auto &first = rank_ops_[0], &last = rank_ops_[halves ? 1 : 0];
  append_layer(lists(&LayerOps::forward_before, first, before_lists_),
               lists(&LayerOps::forward_after, last, after_lists_), cost.forward[k], forward_kernels_,
               exchanges_.forward, halves, out_->blocks[begin + kForward + k]);
  if (costs_.basis.repeats_less() && !halves && !is_moe(kind))
    append_layer(lists(&LayerOps::again_before, first, before_lists_),
                 lists(&LayerOps::again_after, first, after_lists_), cost.again[k], forward_kernels_,
                 exchanges_.forward, halves, out_->blocks[begin + kRepeat + k]);
  append_layer(lists(&LayerOps::backward_before, last, before_lists_),
               lists(&LayerOps::backward_after, first, after_lists_), cost.backward[k], backward_kernels_,
               exchanges_.backward, halves, out_->blocks[begin + kBackward + k]);
  append_layer(lists(&LayerOps::input_before, last, before_lists_),
               lists(&LayerOps::input_after, first, after_lists_), cost.input_gradient[k], backward_kernels_,
               exchanges_.backward, halves, out_->blocks[begin + kInputGradient + k]);
  append_ops(lists(&LayerOps::weights, last, before_lists_), out_->blocks[begin + kWeightGradient + k]);
  if (halves)
    append_ops(lists(&LayerOps::weights, first, before_lists_), out_->blocks[begin + kWeightGradient + k]);
}

}  // namespace equipoise
