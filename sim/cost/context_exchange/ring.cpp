// Ring attention (arXiv 2310.01889).
//
// In step k a rank attends to the K and V that rank r - k began with, while the next ones arrive from its
// neighbour: c - 1 exchanges beside c calls of attention. In the backward the gradients of a block go on
// with it, one step behind, and come home at the end.
//
// O(ranks x segments), and a price for each of a rank's steps that is unlike the one before.
#include <tuple>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

// Blocks of K and V of a rank that each exchange of a backward moves. Beside attention step k the next block
// comes (not beside the last step), and from step 2 on the gradients that were found for a block go on with
// it; at the end they come home. A rank's part of its own block's gradients stays.
std::vector<int> blocks_sent_backward(int context) {
  std::vector<int> blocks;
  for (int step = 0; step < context; ++step)
    if (const int sent = (step + 1 < context ? 1 : 0) + (step >= 2 ? 1 : 0); sent > 0) blocks.push_back(sent);
  blocks.push_back(1);
  return blocks;
}

// Every rank sends to its neighbour at once; where the ring crosses nodes, those hops set the pace.
GroupShape hop_of(const ContextGroup& group) {
  return {2, group.shape.ranks_per_node == group.shape.ranks ? 2 : 1};
}

struct PricedStep {
  Op op;
  RangeUse use;
};

PricedStep step_of(const LayerCosts& costs, std::int64_t tokens, int blocks, const ContextGroup& group) {
  PricedStep step{{OpName::cp_ring_step, Stream::cp}, {}};
  step.op.bytes = blocks * as_double(tokens) * group.kv_bytes_per_token;
  step.op.duration = to_picoseconds(
      costs.collectives().seconds(Collective::send_recv, step.op.bytes, hop_of(group), step.use));
  return step;
}

// A ring goes round even where nothing is shared.
void exchange_blocks(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                     ContextExchanges& out, RangeUse& use) {
  const int context = group.ranks;
  out.clear();
  if (context == 1) return;
  const std::int64_t block = tokens.fullest + (tokens.earlier + context - 1) / context;
  const PricedStep one = step_of(costs, block, 1, group);
  const PricedStep two = context > 2 ? step_of(costs, block, 2, group) : one;
  const auto add = [&use](std::vector<Op>& pass, const PricedStep& step) {
    pass.push_back(step.op);
    use += step.use;
  };
  for (int step = 0; step + 1 < context; ++step) add(out.forward, one);
  for (const int blocks : blocks_sent_backward(context)) add(out.backward, blocks == 2 ? two : one);
}

// The segments of all ranks, and the pieces of a rank's call on another rank's block.
class RingPieces {
 public:
  // Sorts each rank's segments by slice and place, so that two ranks' lists can be read side by side.
  void sort(const Sharding& sharding, int context) {
    sharding_ = &sharding;
    sorted_.resize(sharding.segments.size());
    for (int r = 0; r < context; ++r) {
      const auto segments = sharding.of_rank(r);
      const std::span<RingSegment> of_rank = sorted(r);
      for (std::size_t i = 0; i < segments.size(); ++i)
        of_rank[i] = {segments[i].slice, static_cast<std::uint32_t>(i), segments[i].q_begin,
                      segments[i].q_end};
      std::ranges::sort(of_rank, {}, [](const RingSegment& s) { return std::tie(s.slice, s.begin); });
    }
  }

  // Of rank `rank`'s call on the block that rank `from` began with, in which each rank has `earlier` tokens
  // of the chunks before. What a run of queries sees of a block is one piece: the keys of its slice lie
  // together there. O(segments of both).
  const std::vector<QueryKeys>& of(int rank, int from, std::int64_t earlier) {
    const auto queries = sharding_->of_rank(rank);
    const std::span<const RingSegment> block = sorted(from);
    keys_.resize(queries.size());
    std::int32_t slice = -1;
    std::int64_t seen = 0;
    auto key = block.begin();
    for (const RingSegment& q : sorted(rank)) {
      if (q.slice != slice) {
        slice = q.slice;
        seen = 0;
        while (key != block.end() && key->slice < slice) ++key;
      }
      for (; key != block.end() && key->slice == slice && key->begin < q.end; ++key)
        seen += key->end - key->begin;
      keys_[q.place] = seen;
    }
    pieces_.clear();
    for (std::size_t i = 0; i < queries.size(); ++i) {
      std::int64_t keys = earlier + keys_[i];
      if (keys == 0) continue;
      // Of another rank's block every query sees all: priced as the causal call that has as many pairs.
      const std::int64_t count = queries[i].queries();
      if (from != rank) keys = std::max(keys + (count - 1) / 2, count);
      pieces_.push_back({count, keys});
    }
    return pieces_;
  }

 private:
  struct RingSegment {
    std::int32_t slice;
    std::uint32_t place;  // among its rank's segments
    std::int64_t begin, end;
  };
  std::span<RingSegment> sorted(int rank) {
    const auto segments = sharding_->of_rank(rank);
    return std::span(sorted_).subspan(at(segments.data() - sharding_->segments.data()), segments.size());
  }

  const Sharding* sharding_ = nullptr;
  std::vector<RingSegment> sorted_;  // as Sharding::segments
  std::vector<std::int64_t> keys_;
  std::vector<QueryKeys> pieces_;
};

void attend_by_blocks(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  const auto c = at(of.context);
  out.forward.reset(of.context, c - 1);
  out.backward.reset(of.context, blocks_sent_backward(of.context).size());
  const std::int64_t earlier = (of.tokens.earlier + of.context - 1) / of.context;
  thread_local RingPieces ring;
  thread_local std::vector<QueryKeys> priced;
  ring.sort(of.sharding, of.context);
  priced.clear();
  LayerCosts::AttentionTimes times;
  RangeUse of_pieces;
  const auto same_piece = [](const QueryKeys& a, const QueryKeys& b) {
    return a.queries == b.queries && a.keys == b.keys;
  };
  for (std::size_t r = 0; r < c; ++r)
    for (std::size_t step = 0; step < c; ++step) {
      const auto& pieces = ring.of(static_cast<int>(r), static_cast<int>((r + c - step) % c), earlier);
      // Even slices give a rank the same pieces on most blocks.
      if (priced.empty() || !std::ranges::equal(pieces, priced, same_piece)) {
        of_pieces = {};
        times = of.costs.attention_times(pieces, of_pieces, 0, of.head_shares);
        priced = pieces;
      }
      use += of_pieces;
      if (step + 1 < c)
        out.forward.add_under(step, r, times.forward);
      else
        out.forward.add_run(step, r, times.forward);
      if (c > 2 || step == 0)
        out.backward.add_under(step, r, of.backward(times));
      else  // two ranks send nothing beside the second step
        out.backward.add_run(1, r, of.backward(times));
    }
}

double least_blocks(const LayerCosts& costs, const ContextGroup& group) {
  double blocks = group.ranks - 1;
  for (const int sent : blocks_sent_backward(group.ranks)) blocks += sent;
  return blocks / group.ranks * group.kv_bytes_per_token *
         costs.collectives().least_seconds_per_byte(Collective::send_recv, hop_of(group));
}

}  // namespace

constinit const ContextForm kRingForm = {
    .title = "Ring",
    .by_blocks = true,
    .takes_windows = false,
    .estimated_exchanges = [](const Layout&, int context) { return context; },
    .held_tokens = [](std::int64_t rank_tokens, std::int64_t, int) { return 2 * rank_tokens; },
    .exchange = exchange_blocks,
    .attend = attend_by_blocks,
    .least_seconds = least_blocks,
};

}  // namespace equipoise
