// Query blocks: the packed sequence is cut into equal blocks of queries, each a unit of dispatch to a CP
// rank. The rules differ in how they distribute the blocks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/sharding/rules.h"
#include "policies/sharding/sharding.h"

namespace equipoise {
namespace {

using sharding::View;

// The blocks of a micro-batch's packed sequence, with `tokens` queries each (the last may have fewer). Its
// arrays are in Sharding::work, so that the next micro-batch allocates nothing.
struct QueryBlocks {
  const View& view;
  std::int64_t tokens;
  std::span<std::int64_t> pairs;  // causal pairs of block b: its masked area
  std::span<std::int64_t> order;  // blocks by pairs, largest first, ties to the lower index
  std::span<std::int64_t> rank;   // the rule fills it in
  std::span<std::int64_t> first,
      from;                          // the slice in which block b begins, and the block's first token there
  std::span<std::int64_t> keys_end;  // work space of KeysSeen

  [[nodiscard]] std::size_t size() const { return order.size(); }
  // The most blocks of a rank, so that tokens of all ranks differ by at most a block.
  [[nodiscard]] std::int64_t slots() const {
    return (static_cast<std::int64_t>(size()) + view.ranks() - 1) / view.ranks();
  }
  // Calls visit(segment) for every piece of block b that lies in one slice.
  template <class Visit>
  void for_each_piece(std::size_t b, const Visit& visit) const {
    std::int64_t begin = from[b];
    std::int64_t room = tokens;
    for (std::size_t i = at(first[b]); i < view.size() && room > 0; ++i, begin = 0) {
      if (!view.distributed(i)) continue;
      const std::int64_t take = std::min(view.tokens(i) - begin, room);
      if (take > 0) visit(view.segment(i, begin, begin + take));
      room -= take;
    }
  }
};

// Cuts the distributed tokens into blocks and sorts them. O(documents + blocks log blocks). `by_keys`:
// whether the rule uses KeysSeen.
QueryBlocks cut_query_blocks(const View& view, std::int64_t tokens, bool by_keys, Sharding& out) {
  const auto count = static_cast<std::size_t>((view.distributed_tokens() + tokens - 1) / tokens);
  const std::size_t keys_end = by_keys ? at(view.ranks()) * view.size() : 0;
  out.work.assign(5 * count + keys_end, 0);
  const auto array = [&](std::size_t k) { return std::span(out.work).subspan(k * count, count); };
  const QueryBlocks blocks{view,     tokens,   array(0), array(1),
                           array(2), array(3), array(4), std::span(out.work).last(keys_end)};
  std::int64_t before = 0;  // distributed tokens
  std::size_t next = 0;     // block
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (!view.distributed(i)) continue;
    for (; next < count && static_cast<std::int64_t>(next) * tokens < before + view.tokens(i); ++next) {
      blocks.first[next] = static_cast<std::int64_t>(i);
      blocks.from[next] = static_cast<std::int64_t>(next) * tokens - before;
    }
    before += view.tokens(i);
  }
  for (std::size_t b = 0; b < count; ++b)
    blocks.for_each_piece(b, [&](const Segment& s) { blocks.pairs[b] += s.pairs(); });
  std::iota(blocks.order.begin(), blocks.order.end(), 0);
  const auto heaviest_first = [&](std::int64_t b) { return std::pair(-blocks.pairs[at(b)], b); };
  std::ranges::sort(blocks.order, {}, heaviest_first);
  return blocks;
}

// Lays out the segments by blocks.rank. A rank's blocks stay in sequence order and are never merged.
void lay_out_blocks(const QueryBlocks& blocks, Sharding& out) {
  sharding::lay_out(blocks.view, 2, out, [&](const auto& emit) {
    for (std::size_t b = 0; b < blocks.size(); ++b)
      blocks.for_each_piece(b, [&](const Segment& s) { emit(static_cast<int>(blocks.rank[b]), 1, s); });
  });
}

// The keys that each rank's queries see, without sliding windows: in each slice, a run from its first key to
// that of their last query.
class KeysSeen {
 public:
  explicit KeysSeen(const QueryBlocks& blocks) : blocks_(blocks) { std::ranges::fill(blocks.keys_end, 0); }
  // The keys of block b that the rank already sees without the block.
  [[nodiscard]] std::int64_t shared(std::size_t b, std::size_t rank) const {
    std::int64_t sum = 0;
    blocks_.for_each_piece(b, [&](const Segment& s) {
      sum += std::max<std::int64_t>(0, std::min(s.q_end, end(s, rank)) - s.kv_begin);
    });
    return sum;
  }
  void add(std::size_t b, std::size_t rank) {
    blocks_.for_each_piece(b, [&](const Segment& s) { end(s, rank) = std::max(end(s, rank), s.q_end); });
  }

 private:
  [[nodiscard]] std::int64_t& end(const Segment& s, std::size_t rank) const {
    return blocks_.keys_end[rank * blocks_.view.size() + at(s.slice)];
  }
  const QueryBlocks& blocks_;
};

// Takes blocks largest first. Of the `width` least loaded ranks with a free slot, a block goes to the one
// that already sees most of its keys, else to the least loaded; ties go to the lower rank. Returns the most
// pairs of a rank. O(blocks (log blocks + c + width pieces)).
std::int64_t deal_by_heap(const QueryBlocks& blocks, std::size_t width, Sharding& out) {
  // These arrays are kept in `out` until the layout gives its members their values.
  std::vector<std::int64_t>& load = out.rank_tokens;
  std::vector<std::int64_t>& used = out.rank_local_tokens;
  std::vector<std::uint32_t>& open = out.cursor;
  load.assign(at(blocks.view.ranks()), 0);
  used.assign(load.size(), 0);
  KeysSeen seen(blocks);
  for (const std::int64_t block : blocks.order) {
    const std::size_t b = at(block);
    open.clear();
    for (std::uint32_t r = 0; r < load.size(); ++r)
      if (used[r] < blocks.slots()) open.push_back(r);
    const auto asked = open.begin() + static_cast<std::ptrdiff_t>(std::min(width, open.size()));
    std::ranges::partial_sort(open, asked, {}, [&](std::uint32_t r) { return std::pair(load[r], r); });
    const auto shared = [&](std::uint32_t r) { return seen.shared(b, r); };
    const std::uint32_t best =
        width == 1 ? open.front() : *std::ranges::max_element(open.begin(), asked, {}, shared);
    if (width > 1) seen.add(b, best);
    load[best] += blocks.pairs[b];
    ++used[best];
    blocks.rank[b] = best;
  }
  return std::ranges::max(load);
}

std::size_t ranks_asked(int ranks, double top_p) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(ranks * top_p)));
}

// Blocks on ranks, and how the number of seen keys changes when a block moves to another rank.
class Placement {
 public:
  Placement(const QueryBlocks& blocks, std::int64_t most_pairs)
      : blocks_(blocks), most_pairs_(most_pairs), load_(at(blocks.view.ranks()), 0), used_(load_.size(), 0) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      load_[at(blocks.rank[b])] += blocks.pairs[b];
      ++used_[at(blocks.rank[b])];
    }
    runs_.assign(blocks.view.size(), {});
    for (std::size_t b = 0; b < blocks.size(); ++b)
      blocks.for_each_piece(b, [&](const Segment& s) {
        std::vector<std::int64_t>& keys = runs_[at(s.slice)].keys;
        if (keys.empty()) runs_[at(s.slice)].first = b;
        keys.push_back(s.q_end - s.kv_begin);
      });
  }

  // The sum over all ranks.
  [[nodiscard]] std::int64_t keys_seen() const {
    std::int64_t sum = 0;
    for (std::size_t s = 0; s < runs_.size(); ++s)
      for (std::size_t r = 0; r < load_.size(); ++r) sum += keys(s, r, kNone, kNone);
    return sum;
  }

  // For each block that adds keys to its rank, makes the change that saves most keys, if any does: a move to
  // a free slot or an exchange with a block of another rank. Ties go to the slot, then to the lower rank and
  // block. Repeats over all blocks until none improves or so many steps were taken. A step is one change
  // considered, or one block visited in the search for a rank's last one.
  void improve(std::int64_t most_steps) {
    steps_ = 0;
    for (bool better = true; better && steps_ < most_steps;) {
      better = false;
      for (std::size_t b = 0; b < blocks_.size() && steps_ < most_steps; ++b) {
        if (spared(b, blocks_.rank[b], kNone) == 0) continue;
        Change best;
        const auto look = [&](std::int64_t rank, std::size_t back) {
          ++steps_;
          if (!allowed(b, rank, back)) return;
          const std::int64_t less = spared(b, rank, back);
          if (less > best.spared) best = {rank, back, less};
        };
        for (std::size_t r = 0; r < used_.size(); ++r)
          if (used_[r] < blocks_.slots()) look(static_cast<std::int64_t>(r), kNone);
        for (std::size_t other = 0; other < blocks_.size(); ++other) look(blocks_.rank[other], other);
        if (best.spared > 0) apply(b, best);
        better = better || best.spared > 0;
      }
    }
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Change {
    std::int64_t rank = 0;     // the rank to which the block moves
    std::size_t back = kNone;  // the block that moves back
    std::int64_t spared = 0;   // decrease of the keys that ranks see
  };
  // The blocks with pieces of a slice: the first block, and the keys that the piece in each sees.
  struct Run {
    std::size_t first = 0;
    std::vector<std::int64_t> keys;
  };

  // The keys of a slice that a rank sees with one block added and one removed.
  [[nodiscard]] std::int64_t keys(std::size_t slice, std::size_t rank, std::size_t more,
                                  std::size_t less) const {
    const Run& run = runs_[slice];
    for (std::size_t k = run.keys.size(); k-- > 0;) {
      const std::size_t b = run.first + k;
      ++steps_;
      if (b == more || (b != less && at(blocks_.rank[b]) == rank)) return run.keys[k];
    }
    return 0;
  }

  [[nodiscard]] bool allowed(std::size_t block, std::int64_t rank, std::size_t back) const {
    const std::int64_t from = blocks_.rank[block];
    const std::int64_t pairs = blocks_.pairs[block] - (back == kNone ? 0 : blocks_.pairs[back]);
    return rank != from && load_[at(rank)] + pairs <= most_pairs_ && load_[at(from)] - pairs <= most_pairs_;
  }

  // The time that the others are spared; with the block's own `rank`, nothing is added.
  [[nodiscard]] std::int64_t spared(std::size_t block, std::int64_t rank, std::size_t back) const {
    const std::size_t from = at(blocks_.rank[block]), to = at(rank);
    std::int64_t sum = 0;
    std::int32_t last = -1;  // slices up to this one were counted
    const auto count = [&](const Segment& s) {
      const std::size_t slice = at(s.slice);
      sum += keys(slice, from, kNone, kNone) - keys(slice, from, back, block);
      if (to != from) sum += keys(slice, to, kNone, kNone) - keys(slice, to, block, back);
      last = s.slice;
    };
    blocks_.for_each_piece(block, count);
    if (back == kNone) return sum;
    const std::int64_t first = blocks_.first[block], counted = last;
    blocks_.for_each_piece(back, [&](const Segment& s) {
      if (s.slice < first || s.slice > counted) count(s);
    });
    return sum;
  }

  void apply(std::size_t block, const Change& change) {
    const std::int64_t from = blocks_.rank[block];
    move(block, change.rank);
    if (change.back != kNone) move(change.back, from);
  }
  void move(std::size_t block, std::int64_t rank) {
    const std::size_t from = at(blocks_.rank[block]);
    load_[from] -= blocks_.pairs[block];
    --used_[from];
    load_[at(rank)] += blocks_.pairs[block];
    ++used_[at(rank)];
    blocks_.rank[block] = rank;
  }

  const QueryBlocks& blocks_;
  std::int64_t most_pairs_;
  std::vector<std::int64_t> load_, used_;
  std::vector<Run> runs_;
  mutable std::int64_t steps_ = 0;
};

}  // namespace

// Heap dispatch (MagiAttention's load-balanced dispatch, its min-heap with equal counts) takes equal query
// blocks, largest masked area first, and gives each to the least loaded rank that still has a free slot; ties
// go to the lower rank. Every rank has ceil(blocks / c) slots, so token counts differ by at most a block
// while the pairs are balanced. With `top_p` (its top-p heap) the block goes to the one of the max(1,
// ceil(top_p c)) least loaded ranks whose blocks see most of its keys.
void shard_heap_dispatch(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                         const AttentionCost&, Sharding& out) {
  const View view(micro_batch, ranks);
  const std::size_t width = ranks_asked(ranks, options.top_p);
  const QueryBlocks blocks = cut_query_blocks(view, options.block, width > 1, out);
  deal_by_heap(blocks, width, out);
  lay_out_blocks(blocks, out);
  out.chosen = "heap-dispatch";
}

// Snake (PTRR) sorts query blocks by masked area, largest first, and deals them to the ranks in snake order:
// 0, 1, .., c-1, c-1, .., 1, 0, 0, 1, .. A rank with a larger block in one round thus gets a smaller one in
// the next. Cost: O(blocks log blocks).
void shard_snake(const MicroBatch& micro_batch, int ranks, const ShardOptions& options, const AttentionCost&,
                 Sharding& out) {
  const View view(micro_batch, ranks);
  const QueryBlocks blocks = cut_query_blocks(view, options.block, false, out);
  const auto c = static_cast<std::size_t>(ranks);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const std::size_t in_round = k % c;
    const bool forward = k / c % 2 == 0;
    blocks.rank[at(blocks.order[k])] = static_cast<std::int64_t>(forward ? in_round : c - 1 - in_round);
  }
  lay_out_blocks(blocks, out);
  out.chosen = "snake";
}

// Block placement solves the problem of DCP's hypergraph partitioner (arXiv 2510.10620) by local search. It
// minimises the K and V that are sent, where each rank has ceil(blocks / c) slots and at most the causal
// pairs that `tolerance` allows above the mean, or that heap-dispatch gives any rank if these are more. It
// starts from the best of four heap dispatches; then blocks move and swap while that saves keys.
//
// Departure: the rank that holds a query computes its attention. DCP places blocks of pairs independently, so
// that keys may be cut too and queries may be sent instead. Keys outside a sliding window count as seen.
//
// Cost: O(blocks x (log blocks + ranks x pieces)) to start, and at most kMostSteps of the search.
void shard_block_placement(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                           const AttentionCost&, Sharding& out) {
  constexpr std::int64_t kMostSteps = 10'000'000;
  const View view(micro_batch, ranks);
  const QueryBlocks blocks = cut_query_blocks(view, options.block, true, out);
  const auto mean = static_cast<double>(std::reduce(blocks.pairs.begin(), blocks.pairs.end())) / ranks;
  const std::int64_t most_pairs =
      std::max(static_cast<std::int64_t>((1 + options.tolerance) * mean), deal_by_heap(blocks, 1, out));
  std::vector<std::int64_t> best(blocks.rank.begin(), blocks.rank.end());
  std::int64_t least = Placement(blocks, most_pairs).keys_seen();
  for (const double top_p : {0.25, 0.5, 1.0}) {
    if (deal_by_heap(blocks, ranks_asked(ranks, top_p), out) > most_pairs) continue;
    const std::int64_t keys = Placement(blocks, most_pairs).keys_seen();
    if (keys < least) best.assign(blocks.rank.begin(), blocks.rank.end());
    least = std::min(least, keys);
  }
  std::ranges::copy(best, blocks.rank.begin());
  Placement(blocks, most_pairs).improve(kMostSteps);
  lay_out_blocks(blocks, out);
  out.chosen = "block-placement";
}

}  // namespace equipoise
