// Ring attention (arXiv 2310.01889).
//
// In step k a rank attends to the K and V that rank r - k began with, while the next ones arrive from its
// neighbour: c - 1 exchanges under c calls of attention. In the backward the gradients of a block go on
// with it, one step behind, and come home at the end.
//
// PyTorch's ring (torch/distributed/tensor/experimental/_attention.py at 1963fc8, December 2024; with
// linear_layers torch) gathers K and V of all ranks during the first step, in each pass, and then goes
// through them. Its partial outputs are merged, and gradients of Q, K and V added up, in fp32, in kernels of
// their own. Gradients of K and V go round in fp32, each hop during the next step, the last one alone. K and
// V are those of all query heads.
//
// Transformer Engine's ring (framework.ring_merges) also has kernels of its own between the calls: it copies
// the half of Q or of K and V that a step needs, puts each step's output together with those before it, and
// adds the gradients up.
//
// O(ranks x segments), and a price for each of a rank's steps that is unlike the one before.
#include <tuple>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

// Blocks of K and V of a rank that each exchange of a backward moves. During attention step k the next block
// comes (not during the last step), and from step 2 on the gradients that were found for a block go on with
// it; at the end they come home. A rank's part of its own block's gradients stays.
std::vector<int> blocks_sent_backward(int context) {
  std::vector<int> blocks;
  for (int step = 0; step < context; ++step)
    if (const int sent = (step + 1 < context ? 1 : 0) + (step >= 2 ? 1 : 0); sent > 0) blocks.push_back(sent);
  blocks.push_back(1);
  return blocks;
}

// Every rank sends to its neighbour at the same time, so hops between nodes set a crossing ring's pace.
GroupShape hop_of(const ContextGroup& group) {
  return {2, group.shape.ranks_per_node == group.shape.ranks ? 2 : 1};
}

// Bytes that PyTorch's ring copies, merges and adds up per element of Q, in addition to its calls of
// attention: around the first, with each further one, at the end. Half of the steps are of all queries and
// half of the keys, the others of half the queries, whose result is put together with the other half's: their
// mean. torch.compile, forward: K and V to the gathered buffer (8, without a cast of the first output and of
// the last, -4); a merge of all (10) or half (9). Backward: K and V to the buffer (8), gradients of three to
// fp32 (18); added (10 or 9 each); K's and V's to bf16 (12), Q's last sum (-2). Eager, forward: K and V in
// order (8), the output to fp32 (6); again K and V side by side (8), a merge's cast, difference, product and
// difference (38, or 19 and 8 to put halves together); to bf16 (6). Backward: K and V in order (8), zeros,
// sums and K and V side by side (14 + 44); K and V again (8), sums of K and V each (18 or 21) and of Q (10 or
// 13); to bf16 (18).
struct Copies {
  double first, step, last;
};
constexpr Copies kMerges[] = {{4, 9.5, 0}, {14, 40.5, 6}};  // compiled, eager
constexpr Copies kSums[] = {{26, 28.5, 10}, {66, 58.5, 18}};

// Bytes that Transformer Engine's moves of an element of Q, of the output, of K and V, with the first call
// and with each further one, mean over ranks: half of the further steps are of half the queries, half of half
// the keys. Forward: K and V side by side (4), the output zeroed (2) and corrected (6, of half the queries
// 3); half of Q, or of K and V, read and written (2). Backward: K and V to the buffer (4), the same halves,
// those of the output and its gradient (2 each); gradients of Q, K and V copied once (4) and added up (6 or
// 3).
struct Merges {
  double query, output, key;
};
constexpr Merges kEngineForward[] = {{0, 8, 4}, {1, 4.5, 1}}, kEngineBackward[] = {{4, 0, 8}, {5.5, 2, 5.5}};

struct PricedStep {
  Op op;
  RangeUse use;
};

PricedStep step_of(const LayerCosts& costs, std::int64_t tokens, double blocks, const ContextGroup& group) {
  PricedStep step{{OpName::cp_ring_step, Stream::cp}, {}};
  step.op.bytes = blocks * as_double(tokens) * group.kv_bytes_per_token;
  step.op.duration = to_picoseconds(
      costs.kernels.collectives().seconds(Collective::send_recv, step.op.bytes, hop_of(group), step.use));
  return step;
}

// A ring has its steps even if no slice is shared.
void exchange_blocks(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                     ContextExchanges& out, RangeUse& use) {
  const int context = group.ranks;
  out.clear();
  if (context == 1) return;
  const std::int64_t block = tokens.fullest + (tokens.earlier + context - 1) / context;
  if (costs.basis.torch_ring()) {
    Op gather{OpName::cp_all_gather, Stream::cp};
    gather.bytes = context * as_double(block) * group.kv_bytes_per_token;
    gather.duration = to_picoseconds(
        costs.kernels.collectives().seconds(Collective::all_gather, gather.bytes, group.shape, use));
    const PricedStep hop = step_of(costs, block, kFp32Bytes / 2, group);
    use += hop.use;
    out.forward = {gather};
    out.backward.assign(at(context) + 1, hop.op);
    out.backward.front() = gather;
    return;
  }
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

  // What rank `rank`'s call does on the block that rank `from` began with, in which each rank has `earlier`
  // tokens of the chunks before. What a run of queries sees of a block is one piece: the keys of its slice
  // lie together there. So are a slice's runs at even distances (PieceForm). O(segments of both).
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
    for (std::size_t i = 0, end; i < queries.size(); i = end) {
      const std::int64_t run = queries[i].queries();
      end = i + 1;
      if (earlier + keys_[i] == 0) continue;
      for (; sharding_->pieces.strided && end < queries.size() && queries[end].slice == queries[i].slice &&
             queries[end].queries() == run;)
        ++end;
      // Priced as the causal call with as many pairs. On another rank's block all queries of a run see the
      // same number of keys; on its own block each sees one more than the query before.
      const std::int64_t count = run * static_cast<std::int64_t>(end - i);
      const std::int64_t twice = keys_[i] + keys_[end - 1] + count - (from == rank ? run : 1);
      pieces_.push_back({count, std::max(earlier + twice / 2, count)});
    }
    return pieces_;
  }

 private:
  struct RingSegment {
    std::int32_t slice;
    std::uint32_t place;  // its place among the rank's segments
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

// Adds the steps of PyTorch's ring: all but the first follow the gather; in the backward each runs during the
// hop of the gradients before it.
void add_torch_step(const ContextCase& of, std::size_t r, std::size_t step, AttentionTimes times,
                    ContextPasses& out, RangeUse& use) {
  const ModelShape& model = of.costs.model();
  const double elements =
      as_double(of.sharding.rank_tokens[r]) * model.heads / of.costs.layout().tensor * model.head_dim;
  const auto moved = [&](double bytes) -> Picoseconds {
    if (bytes * elements == 0) return 0;
    return of.costs.kernels.moves(OpName::attention, Elementwise::copy, bytes * elements, use).duration;
  };
  const std::size_t eager = of.costs.framework().linear_layers == LinearLayers::torch_eager ? 1 : 0;
  const Copies &merges = kMerges[eager], &sums = kSums[eager];
  out.backward.add_under(step, r, of.backward(times) + (step > 0 ? moved(sums.step) : 0));
  if (step > 0) return out.forward.add_run(1, r, times.forward + moved(merges.step));
  out.forward.add_under(0, r, times.forward);
  out.forward.add_run(0, r, moved(merges.first));
  out.forward.add_run(1, r, moved(merges.last));
  out.backward.add_run(0, r, moved(sums.first));
  out.backward.add_run(at(of.context) + 1, r, moved(sums.last));
}

// What Transformer Engine's ring adds to a rank's calls, in the first step and in each later one.
std::array<AttentionTimes, 2> engine_merges(const ContextCase& of, std::size_t r, RangeUse& use) {
  if (!of.costs.framework().ring_merges || of.costs.basis.torch_ring() || of.context == 1) return {};
  const ModelShape& model = of.costs.model();
  const int tensor = of.costs.layout().tensor;
  const double tokens = as_double(of.sharding.rank_tokens[r] - of.sharding.rank_local_tokens[r]);
  const double heads = tokens * (model.heads / tensor) / of.head_shares;
  const int kv_heads = model.mla ? model.heads / tensor : std::max(1, model.kv_heads / tensor);
  const double keys = (tokens + as_double(of.tokens.earlier) / of.context) *
                      as_double(of.costs.kv_bytes_per_token()) / (kFp32Bytes / 2) /
                      std::min(kv_heads, of.head_shares);
  const auto moved = [&](const Merges& m) -> Picoseconds {
    const double bytes = heads * (m.query * model.head_dim + m.output * model.value_dim()) + m.key * keys;
    return bytes == 0 ? 0 : of.costs.kernels.moves(OpName::attention, Elementwise::copy, bytes, use).duration;
  };
  return {{{moved(kEngineForward[0]), moved(kEngineBackward[0])},
           {moved(kEngineForward[1]), moved(kEngineBackward[1])}}};
}

void attend_by_blocks(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  const auto c = at(of.context);
  const bool gathers = of.costs.basis.torch_ring();
  out.forward.reset(of.context, gathers ? 1 : c - 1);
  out.backward.reset(of.context, gathers ? c + 1 : blocks_sent_backward(of.context).size());
  const std::int64_t earlier = (of.tokens.earlier + of.context - 1) / of.context;
  thread_local RingPieces ring;
  thread_local std::vector<QueryKeys> priced;
  ring.sort(of.sharding, of.context);
  priced.clear();
  AttentionTimes times;
  RangeUse of_pieces;
  const auto same_piece = [](const QueryKeys& a, const QueryKeys& b) {
    return a.queries == b.queries && a.keys == b.keys;
  };
  for (std::size_t r = 0; r < c; ++r) {
    const auto merges = engine_merges(of, r, use);
    for (std::size_t step = 0; step < c; ++step) {
      const auto& pieces = ring.of(static_cast<int>(r), static_cast<int>((r + c - step) % c), earlier);
      // Even slices give a rank the same pieces on most blocks.
      if (priced.empty() || !std::ranges::equal(pieces, priced, same_piece)) {
        of_pieces = {};
        times = of.costs.attention.times(pieces, of_pieces, 0, of.head_shares);
        priced = pieces;
      }
      use += of_pieces;
      if (gathers) {
        add_torch_step(of, r, step, times, out, use);
        continue;
      }
      const AttentionTimes& merge = merges[step == 0 ? 0 : 1];
      const Picoseconds forward = times.forward + merge.forward;
      const Picoseconds backward = of.backward({forward, times.backward + merge.backward});
      if (step + 1 < c)
        out.forward.add_under(step, r, forward);
      else
        out.forward.add_run(step, r, forward);
      if (c > 2 || step == 0)
        out.backward.add_under(step, r, backward);
      else  // two ranks send nothing during the second step
        out.backward.add_run(1, r, backward);
    }
  }
}

double least_blocks(const LayerCosts& costs, const ContextGroup& group) {
  const auto rate = [&](Collective kind, GroupShape shape) {
    return group.kv_bytes_per_token * costs.kernels.collectives().least_seconds_per_byte(kind, shape);
  };
  const double sent = rate(Collective::send_recv, hop_of(group));
  if (costs.basis.torch_ring()) return 2 * rate(Collective::all_gather, group.shape) + kFp32Bytes / 2 * sent;
  double blocks = group.ranks - 1;
  for (const int sent_blocks : blocks_sent_backward(group.ranks)) blocks += sent_blocks;
  return blocks / group.ranks * sent;
}

}  // namespace

constinit const ContextForm kRingForm = {
    .held_tokens = [](std::int64_t rank_tokens, std::int64_t, int) { return 2 * rank_tokens; },
    .exchange = exchange_blocks,
    .attend = attend_by_blocks,
    .least_seconds = least_blocks,
};

}  // namespace equipoise
