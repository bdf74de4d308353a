#include "sim/step/layer_block.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <functional>
#include <iterator>
#include <utility>

namespace equipoise {

namespace {

void push_step(OpBlock& block, const OpStep& step, std::span<const Picoseconds> durations) {
  block.steps.push_back(step);
  block.durations.insert(block.durations.end(), durations.begin(), durations.end());
}

bool any(std::span<const Picoseconds> durations) {
  return std::any_of(durations.begin(), durations.end(), [](Picoseconds t) { return t != 0; });
}

OpStep with_work(OpStep step, std::span<const RankWork> of_ranks, OpBlock& block) {
  for (const RankWork& work : of_ranks) {
    step.bytes = std::max(step.bytes, work.bytes);
    step.flops = std::max(step.flops, work.flops);
  }
  if (std::ranges::adjacent_find(of_ranks, std::not_equal_to<>()) != of_ranks.end()) {
    step.rank_work = static_cast<std::int32_t>(block.rank_work.size());
    block.rank_work.insert(block.rank_work.end(), of_ranks.begin(), of_ranks.end());
  }
  return step;
}

void push_kernel(OpBlock& block, OpName name, std::span<const Picoseconds> durations,
                 std::span<const RankWork> work = {}) {
  if (any(durations)) push_step(block, with_work({name}, work, block), durations);
}

std::vector<Picoseconds> totals(RankOps lists) {
  return each_of(lists, [](const std::vector<Op>* list) { return run_time(*list).total; });
}

}  // namespace

void append_ops(RankOps lists, OpBlock& block) {
  std::size_t steps = 0;
  std::size_t model = 0;
  for (std::size_t r = 0; r < lists.size(); ++r)
    if (lists[r]->size() > steps) {
      steps = lists[r]->size();
      model = r;
    }
  std::vector<Picoseconds> durations(lists.size());
  std::vector<RankWork> work(lists.size());
  for (std::size_t s = 0; s < steps; ++s) {
    const Op& op = (*lists[model])[s];
    OpStep step{op.name, op.stream};
    step.sync = op.stream == Stream::tp            ? SyncGroup::tensor
                : op.name == OpName::ep_all_to_all ? SyncGroup::expert
                                                   : SyncGroup::none;
    step.with_next = op.with_next;
    step.over = op.over;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      durations[r] = 0;
      work[r] = {};
      if (s >= lists[r]->size())
        continue;  // A rank without tokens, or with fewer ops, starts with weight gradients of what arrives.
      const Op& own = (*lists[r])[s];
      assert(own.name == op.name);
      durations[r] = own.duration;
      work[r] = {own.bytes, own.flops};
    }
    push_step(block, with_work(step, work, block), durations);
  }
}

namespace {

// Cuts the mixers' kernels into pieces, which exchanges separate.
class MixerPieces {
 public:
  explicit MixerPieces(std::span<const MixerKernel> mixers) : mixers_(mixers) {
    for (const MixerKernel& mixer : mixers) left_.emplace_back(mixer.time.begin(), mixer.time.end());
  }
  // Appends the next piece, which takes each rank `times`. It is of the first mixer that has time left.
  void push(std::span<const Picoseconds> times, OpBlock& block) {
    std::vector<Picoseconds> rest(times.begin(), times.end());
    for (std::size_t m = 0; m < mixers_.size(); ++m) {
      std::vector<Picoseconds> own(rest.size());
      for (std::size_t r = 0; r < rest.size(); ++r) {
        own[r] = m + 1 < mixers_.size() ? std::min(rest[r], left_[m][r]) : rest[r];
        rest[r] -= own[r];
        left_[m][r] -= own[r];
      }
      push_kernel(block, mixers_[m].name, own, work_of(mixers_[m], own));
    }
  }
  // What is left on each rank.
  [[nodiscard]] std::vector<Picoseconds> rest() const {
    std::vector<Picoseconds> sum(left_.front().size());
    for (const auto& left : left_)
      for (std::size_t r = 0; r < sum.size(); ++r) sum[r] += left[r];
    return sum;
  }

 private:
  // A rank's FLOPs are shared out over the pieces in proportion to their time.
  static std::vector<RankWork> work_of(const MixerKernel& mixer, std::span<const Picoseconds> piece) {
    std::vector<RankWork> work(piece.size());
    for (std::size_t r = 0; r < piece.size(); ++r)
      if (mixer.time[r] > 0) work[r].flops = mixer.flops[r] * as_double(piece[r]) / as_double(mixer.time[r]);
    return work;
  }

  std::span<const MixerKernel> mixers_;
  std::vector<std::vector<Picoseconds>> left_;  // by mixer and rank
};

}  // namespace

void append_layer(RankOps before, RankOps after, const LayerTimeline& timeline,
                  std::span<const MixerKernel> mixers, std::span<const Op> exchanges, bool halves,
                  OpBlock& block) {
  const std::size_t ranks = before.size();
  const std::size_t count = timeline.syncs();
  const auto run_of = [&](std::size_t p, std::size_t r) { return timeline.local[p * ranks + r]; };
  const std::vector<Picoseconds> before_total = totals(before);
  const std::vector<Picoseconds> after_total = totals(after);
  MixerPieces pieces(mixers);
  std::vector<Picoseconds> kernel(ranks);

  append_ops(before, block);
  for (std::size_t p = 0; p < count; ++p) {
    for (std::size_t r = 0; r < ranks; ++r) kernel[r] = run_of(p, r) - (p == 0 ? before_total[r] : 0);
    pieces.push(kernel, block);
    // The other nano-batch's work under the first and the last exchange is one op each.
    const bool attends = !halves || (p > 0 && p + 1 < count);
    for (std::size_t r = 0; r < ranks; ++r) kernel[r] = timeline.overlap[p * ranks + r];
    const bool overlaps = any(kernel);
    const std::vector<Picoseconds> shared(ranks, timeline.comm[p]);
    OpStep step{exchanges[p].name, Stream::cp, SyncGroup::context, overlaps};
    step.bytes = exchanges[p].bytes;
    push_step(block, step, shared);
    if (!overlaps) continue;
    if (attends)
      pieces.push(kernel, block);
    else
      push_kernel(block, OpName::nano_batch, kernel);
  }
  // The last run holds the rest of the mixers, `after`, and the host's stalls.
  kernel = pieces.rest();
  pieces.push(kernel, block);
  append_ops(after, block);
  std::vector<Picoseconds> stall(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    stall[r] = run_of(count, r) - (count == 0 ? before_total[r] : 0) - kernel[r] - after_total[r];
    assert(kernel[r] >= 0 && stall[r] >= 0);
  }
  push_kernel(block, OpName::host_stall, stall);
}

namespace {

// Issues two blocks side by side, part by part; exchanges separate the parts of a block.
class PairedBlock {
 public:
  PairedBlock(const OpBlock& forward, const OpBlock& backward) : sides_{{{forward}, {backward}}} {}

  void advance(PairSide side, std::size_t) {
    Side& from = of(side);
    while (from.next < from.block.steps.size() && from.block.steps[from.next].sync != SyncGroup::expert)
      push(side);
  }
  void begin(PairSide side, std::size_t) {
    exchange_ = pair_.steps.size();
    const std::uint32_t own = of(side).block.steps[of(side).next].over;
    for (std::uint32_t i = 0; i <= own; ++i) push(side);  // its own ops under the exchange come first
  }
  void await() {
    pair_.steps[exchange_].over = static_cast<std::uint32_t>(pair_.steps.size() - exchange_ - 1);
  }
  [[nodiscard]] OpBlock& block() { return pair_; }

 private:
  struct Side {
    const OpBlock& block;
    std::size_t next = 0;
  };
  [[nodiscard]] Side& of(PairSide side) { return sides_[at(side)]; }
  void push(PairSide side) {
    Side& from = of(side);
    const std::size_t ranks = from.block.durations.size() / from.block.steps.size();
    const OpStep& step = from.block.steps[from.next];
    const bool alike = step.rank_work == OpStep::kAlike;
    const auto place = static_cast<std::int32_t>(pair_.rank_work.size());
    for (std::size_t r = 0; r < ranks && !alike; ++r) pair_.rank_work.push_back(from.block.work(step, r));
    push_step(pair_, step, std::span(from.block.durations).subspan(from.next * ranks, ranks));
    pair_.steps.back().of_second = side == PairSide::backward;
    if (!alike) pair_.steps.back().rank_work = place;
    ++from.next;
  }

  std::array<Side, 2> sides_;
  OpBlock pair_;
  std::size_t exchange_ = 0;
};

}  // namespace

OpBlock pair_of_layers(const OpBlock& forward, const OpBlock& backward) {
  const auto exchanges = std::ranges::count(forward.steps, SyncGroup::expert, &OpStep::sync);
  PairedBlock pair(forward, backward);
  walk_layer_pair(at(exchanges), pair);
  return std::move(pair.block());
}

std::vector<Op> without_weight_gradients(const std::vector<Op>& ops) {
  std::vector<Op> kept;
  std::size_t exchange = 0, under_end = 0;  // place in `kept` of the latest exchange; where it ends
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == OpName::weight_gradient) {
      if (i < under_end) --kept[exchange].over;
      continue;
    }
    kept.push_back(ops[i]);
    if (ops[i].over > 0) {
      exchange = kept.size() - 1;
      under_end = i + 1 + ops[i].over;
    }
    if (ops[i].with_next && ops[i + 1].name == OpName::weight_gradient) kept.back().with_next = false;
  }
  return kept;
}

std::vector<Op> only_weight_gradients(const std::vector<Op>& ops) {
  std::vector<Op> kept;
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(kept),
               [](const Op& op) { return op.name == OpName::weight_gradient; });
  return kept;
}

}  // namespace equipoise
