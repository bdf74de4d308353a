// Group-cast and group-reduce (MagiAttention, described with MAGI-1, arXiv 2505.13211).
//
// A rank is sent the K and V of those blocks of the packed sequence that its queries see and others hold, by
// all-to-alls with messages of any size, an equal part of them in each of `cast_stages`. During each exchange
// it attends to what it has: first to its own keys, then to those of the stage before. Attention to the last
// stage is exposed, and in the backward, which casts again unless framework.keep_gathered_kv, the way of the
// last stage's gradients to their owners; those of the others go home two exchanges later.
//
// Blocks are of the packed sequence, as MagiAttention aligns what it requests; with an alignment of one token
// it requests ranges to the token.
//
// The time is that of the profile's all-to-all in which every rank moves as much as the rank here that sends
// or receives most, spread evenly over its peers: the slowest rank's bytes are ours, their places are not.
// A layer whose queries see a window attends to everything behind one exchange, in one call.
//
// With cast_once_per_node what several ranks of another node need in a stage crosses the network once, to the
// rank there that has the owner's number in its node, and goes on from there over NVLink; gradients are added
// up there before they go home. As MagiAttention's hierarchical group collectives run it: an all-to-all among
// the ranks of equal number, at the same time one in the node of its own tokens, behind it one of what is
// passed on; each as long as its busiest rank.
//
// Example, 8 tokens in one document on 2 ranks, zig-zag: rank 0 has tokens 0, 1, 6, 7, which see 2 to 5 of
// rank 1; rank 1 has 2 to 5, which see 0 and 1. Blocks of one token: 4 and 2 tokens travel, most 4; blocks of
// four (0 to 3, 4 to 7): the same; one block of eight: 4 and 4, as all-gather sends.
#include "sim/cost/context_exchange/group_cast.h"

#include <limits>
#include <tuple>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {

void CastBlocks::prepare(const Sharding& sharding, const std::vector<int>& placement, std::int64_t window,
                         std::int64_t block, int stages) {
  block_ = block;
  stages_ = stages;
  held_.clear();
  slices_.clear();
  for (int r = 0; r < sharding.ranks(); ++r)
    for (const Segment& s : sharding.of_rank(r)) {
      if (is_placed(placement, s)) continue;
      const std::int64_t from = window > 0 ? std::max(s.kv_begin, s.q_begin - window + 1) : s.kv_begin;
      held_.push_back({s.q_begin, s.q_end, from, r, s.slice});
      if (slices_.size() <= at(s.slice)) slices_.resize(at(s.slice) + 1);
      SliceRange& slice = slices_[at(s.slice)];
      slice.begin = slice.begin == slice.end ? s.q_begin : std::min(slice.begin, s.q_begin);
      slice.end = std::max(slice.end, s.q_end);
    }
  std::int64_t packed = 0;
  for (SliceRange& slice : slices_) {
    slice.packed = packed;
    packed += slice.end - slice.begin;
  }
  for (Held& held : held_) {
    const SliceRange& slice = slices_[at(held.slice)];
    const std::int64_t move = slice.packed - slice.begin;
    held.begin += move;
    held.end += move;
    held.seen_from = std::max(held.seen_from, slice.begin) + move;
  }
  total_ = packed;
  own_ = held_;
  std::sort(own_.begin(), own_.end(), [](const Held& a, const Held& b) {
    return std::tie(a.rank, a.begin) < std::tie(b.rank, b.begin);
  });
  std::sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.begin < b.begin; });
}

// Other ranks hold what lies between a rank's own segments in what they see.
void CastBlocks::find_needed_blocks(std::span<const Held> own) {
  const auto add = [](std::vector<Range>& ranges, std::int64_t begin, std::int64_t end) {
    if (!ranges.empty() && begin <= ranges.back().end)
      ranges.back().end = std::max(ranges.back().end, end);
    else
      ranges.push_back({begin, end});
  };
  seen_.clear();
  needed_.clear();
  for (const Held& held : own) add(seen_, held.seen_from, held.end);
  auto next = own.begin();
  for (const Range& seen : seen_)
    for (std::int64_t from = seen.begin; next != own.end() && next->begin < seen.end; ++next) {
      if (next->begin > from) add(needed_, from / block_ * block_, ((next->begin - 1) / block_ + 1) * block_);
      from = next->end;
    }
}

const std::vector<CastRange>& CastBlocks::received_by(int rank) {
  const auto of_rank = std::equal_range(own_.begin(), own_.end(), Held{.rank = rank},
                                        [](const Held& a, const Held& b) { return a.rank < b.rank; });
  find_needed_blocks(std::span(own_).subspan(static_cast<std::size_t>(of_rank.first - own_.begin()),
                                             static_cast<std::size_t>(of_rank.second - of_rank.first)));
  whole_.clear();
  all_ = 0;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    whole_.push_back({begin, end, 0, all_});
    all_ += end - begin;
  };
  auto own = of_rank.first;
  for (const Range& needed : needed_) {
    std::int64_t from = needed.begin;
    const std::int64_t end = std::min(needed.end, total_);
    for (; own != of_rank.second && own->begin < end; ++own) {
      add(from, own->begin);
      from = std::max(from, own->end);
      if (own->end > end) break;
    }
    add(from, end);
  }
  cut_into_stages();
  return received_;
}

void CastBlocks::cut_into_stages() {
  part_ = std::max<std::int64_t>(1, (all_ + stages_ - 1) / stages_);
  received_.clear();
  for (CastRange left : whole_)
    while (left.begin < left.end) {
      CastRange range = left;
      range.stage = static_cast<int>(left.place / part_);
      range.end = std::min(left.end, left.begin + places_of(range.stage).end - left.place);
      received_.push_back(range);
      left.place += range.tokens();
      left.begin = range.end;
    }
}

std::vector<CastPiece> CastBlocks::pieces_to(int rank) {
  std::vector<CastPiece> pieces;
  auto held = held_.begin();
  for (const CastRange& range : received_by(rank)) {
    while (held != held_.end() && held->end <= range.begin) ++held;
    for (auto h = held; h != held_.end() && h->begin < range.end; ++h) {
      const std::int64_t move = slices_[at(h->slice)].begin - slices_[at(h->slice)].packed;
      pieces.push_back({h->rank, h->slice, std::max(h->begin, range.begin) + move,
                        std::min(h->end, range.end) + move, range.stage});
    }
  }
  return pieces;
}

std::int64_t CastBlocks::place_of(std::int32_t slice, std::int64_t token) const {
  const SliceRange& of = slices_[at(slice)];
  const std::int64_t packed = of.packed + std::max(token, of.begin) - of.begin;
  const auto next = std::partition_point(received_.begin(), received_.end(),
                                         [&](const CastRange& range) { return range.end <= packed; });
  if (next == received_.end()) return all_;
  return next->place + std::max<std::int64_t>(0, packed - next->begin);
}

template <class Visit>
void CastBlocks::for_readers(std::vector<Edge>& edges, std::vector<int>& reads, const Visit& visit) const {
  std::ranges::sort(edges, {}, &Edge::token);
  auto edge = edges.begin();
  std::int64_t readers = 0;
  reads.assign(reads.size(), 0);
  for (const Held& held : held_)
    for (std::int64_t from = held.begin; from < held.end;) {
      for (; edge != edges.end() && edge->token <= from; ++edge) {
        readers += edge->by;
        reads[at(edge->rank)] += edge->by;
      }
      const std::int64_t end = edge == edges.end() ? held.end : std::min(held.end, edge->token);
      visit(held.rank, end - from, readers);
      from = end;
    }
}

int cast_node_ranks(const Layout& layout, const RankGrid& grid, int degree) {
  if (!layout.cast_once_per_node || !layout.acting_facts().casts || degree < 2) return 0;
  const int in_node = grid.context_shape(degree).ranks_per_node;
  return in_node > 1 && in_node < degree && degree % in_node == 0 ? in_node : 0;
}

namespace {

// Tokens that ranks send and receive over one kind of link, by stage and rank.
struct CastLoads {
  std::vector<std::int64_t> sent, received;

  void reset(std::size_t count) {
    sent.assign(count, 0);
    received.assign(count, 0);
  }
  void find_most(std::size_t ranks, std::array<std::int64_t, kMostCastStages>& most) const {
    for (std::size_t i = 0; i < sent.size(); ++i)
      most[i / ranks] = std::max({most[i / ranks], sent[i], received[i]});
  }
};

// What goes to a node once, and from the rank that hands it over there to those that read it.
struct NodeLoads {
  CastLoads across, inside, passed_on;
  std::vector<std::int64_t> for_others;  // by stage and rank: what it passes on and does not need itself

  void reset(std::size_t count) {
    for (CastLoads* loads : {&across, &inside, &passed_on}) loads->reset(count);
    for_others.assign(count, 0);
  }
  // Adds tokens of one owner to the stage with loads from `first` on; `reads` is 1 for ranks that need them.
  void add(int owner, std::int64_t tokens, const std::vector<int>& reads, int node_ranks, std::size_t first) {
    for (int node = 0; node < static_cast<int>(reads.size()); node += node_ranks) {
      const std::span in_node = std::span(reads).subspan(at(node), at(node_ranks));
      const auto readers = std::count(in_node.begin(), in_node.end(), 1);
      if (readers == 0) continue;
      const std::size_t hands = at(cast_through(owner, node, node_ranks));
      const bool far = hands != at(owner);
      CastLoads& near = far ? passed_on : inside;
      near.sent[first + hands] += tokens * (readers - reads[hands]);
      for (std::size_t r = at(node); r < at(node + node_ranks); ++r)
        if (r != hands) near.received[first + r] += tokens * reads[r];
      if (!far) continue;
      across.sent[first + at(owner)] += tokens;
      across.received[first + hands] += tokens;
      if (reads[hands] == 0) for_others[first + hands] += tokens;
    }
  }
  // `held` has tokens by rank, without those for other ranks, which it holds until a stage is over.
  void finish(const std::vector<std::int64_t>& held, CastTokens& tokens) const {
    across.find_most(held.size(), tokens.most);
    inside.find_most(held.size(), tokens.inside);
    passed_on.find_most(held.size(), tokens.passed_on);
    for (std::size_t place = 0; place < for_others.size(); ++place) {
      tokens.received += for_others[place];
      tokens.held = std::max(tokens.held, held[place % held.size()] + for_others[place]);
    }
  }
};

}  // namespace

// Every query of a dependent chunk sees all tokens of earlier chunks, of which each rank has its share.
CastTokens cast_tokens(const MicroBatch& micro_batch, const Sharding& sharding, std::int64_t window,
                       const Layout& layout, std::int64_t earlier, int node_ranks) {
  thread_local CastBlocks blocks;
  thread_local NodeLoads loads;
  thread_local std::array<std::vector<CastBlocks::Edge>, kMostCastStages> edges;
  thread_local std::vector<int> reads;
  thread_local std::vector<std::int64_t> held;
  const auto ranks = at(sharding.ranks());
  CastTokens tokens;
  tokens.stages = window > 0 ? 1 : layout.cast_stages;
  tokens.node_ranks = node_ranks;
  blocks.prepare(sharding, placement_of(micro_batch, sharding), window, layout.block, tokens.stages);
  loads.reset(ranks * at(tokens.stages));
  for (auto& of_stage : edges) of_stage.clear();
  reads.resize(ranks);
  held.resize(ranks);
  std::vector<std::int64_t>&sent = loads.across.sent, &received = loads.across.received;
  const auto own = [&](std::size_t r) { return sharding.rank_tokens[r] - sharding.rank_local_tokens[r]; };
  std::int64_t readers = 0;  // number of ranks that need the earlier chunks
  for (std::size_t r = 0; r < ranks; ++r) {
    held[r] = own(r);
    for (const CastRange& range : blocks.received_by(static_cast<int>(r))) {
      edges[at(range.stage)].push_back({range.begin, static_cast<int>(r), 1});
      edges[at(range.stage)].push_back({range.end, static_cast<int>(r), -1});
      if (node_ranks == 0) received[at(range.stage) * ranks + r] += range.tokens();
      held[r] += range.tokens();
    }
    tokens.received += held[r] - own(r);
    if (own(r) == 0) continue;
    ++readers;
    if (node_ranks == 0) received[r] += earlier - earlier / sharding.ranks();
  }
  for (std::size_t s = 0; s < at(tokens.stages); ++s)
    blocks.for_readers(edges[s], reads, [&](int owner, std::int64_t count, std::int64_t of_all) {
      if (node_ranks == 0)
        sent[s * ranks + at(owner)] += of_all * count;
      else if (of_all > 0)
        loads.add(owner, count, reads, node_ranks, s * ranks);
    });
  const std::int64_t share = (earlier + sharding.ranks() - 1) / sharding.ranks();
  for (std::size_t r = 0; share > 0 && r < ranks; ++r) {
    if (node_ranks == 0) {
      sent[r] += share * (readers - (own(r) > 0 ? 1 : 0));
      continue;
    }
    for (std::size_t to = 0; to < ranks; ++to) reads[to] = to != r && own(to) > 0 ? 1 : 0;
    loads.add(static_cast<int>(r), share, reads, node_ranks, 0);
  }
  loads.finish(held, tokens);
  return tokens;
}

namespace {

// One exchange with what arrives and what leaves: a stage's tokens on one kind of link, or none.
Op cast_exchange(const LayerCosts& costs, const CastTokens& cast, std::size_t arrives, std::size_t leaves,
                 const ContextGroup& group, RangeUse& use) {
  const auto send = [&](const std::array<std::int64_t, kMostCastStages>& most, const ContextGroup& among) {
    const auto of = [&](std::size_t stage) { return stage < at(cast.stages) ? most[stage] : 0; };
    const double bytes = as_double(of(arrives) + of(leaves)) * group.kv_bytes_per_token;
    return uneven_all_to_all(costs, bytes, among, use);
  };
  if (cast.node_ranks == 0) return send(cast.most, group);
  const ContextGroup in_node{cast.node_ranks, {cast.node_ranks, cast.node_ranks}, group.kv_bytes_per_token};
  const int nodes = group.ranks / cast.node_ranks;
  Op op = send(cast.most, {nodes, {nodes, 1}, group.kv_bytes_per_token});
  const Op inside = send(cast.inside, in_node), passed_on = send(cast.passed_on, in_node);
  // Its bytes are those of an all-to-all of the group that loads the network equally.
  if (op.bytes == 0) op.bytes = inside.bytes;
  op.duration = std::max(op.duration, inside.duration) + passed_on.duration;
  return op;
}

// During the attention to a stage the next stage arrives, and the gradients of the one before return.
void cast_blocks(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                 ContextExchanges& out, RangeUse& use) {
  out.clear();
  const CastTokens& cast = tokens.cast;
  const auto stages = at(cast.stages);
  if (cast.most == decltype(cast.most){} && cast.inside == decltype(cast.inside){}) return;
  for (std::size_t s = 0; s < stages; ++s)
    out.forward.push_back(cast_exchange(costs, cast, s, stages, group, use));
  if (costs.framework().keep_gathered_kv) {
    out.backward = out.forward;  // gradients go the other way
    return;
  }
  const std::size_t delay = stages == 1 ? 1 : 2;  // from a stage's arrival to the return of its gradients
  for (std::size_t e = 0; e < stages + delay; ++e)
    out.backward.push_back(cast_exchange(costs, cast, e, e < delay ? stages : e - delay, group, use));
}

// The kernel calls of a rank: on what it has, and on what arrives in each stage.
class CastCalls {
 public:
  void begin(const ContextCase& of) {
    of_ = &of;
    stages_ = of.tokens.cast.stages;
    earlier_ = of.tokens.earlier / of.context;
    if (stages_ > 1)
      blocks_.prepare(of.sharding, placement_of(of.micro_batch, of.sharding), 0, of.costs.layout().block,
                      stages_);
  }
  void find(int rank) {
    const std::vector<int>& placement = placement_of(of_->micro_batch, of_->sharding);
    own.clear();
    for (auto& calls : arrived) calls.clear();
    seen_.assign(of_->micro_batch.slices.size(), 0);
    if (stages_ > 1) blocks_.received_by(rank);
    Part part;
    for (const Segment& s : of_->sharding.of_rank(rank)) {
      if (is_placed(placement, s)) {
        own.push_back({s.queries(), s.keys()});
        continue;
      }
      // Single tokens of a slice are one call (PieceForm).
      if (!of_->sharding.pieces.strided || part.slice != s.slice) finish(part);
      part.slice = s.slice;
      add(s, part);
    }
    finish(part);
  }

  std::vector<QueryKeys> own;
  std::array<std::vector<QueryKeys>, kMostCastStages> arrived;

 private:
  struct Part {
    std::int32_t slice = -1;
    std::int64_t queries = 0, own_keys = 0;
    std::array<std::int64_t, kMostCastStages> pairs{};  // on what arrives, by stage
  };

  // A rank's pieces of a slice arrive in document order.
  void add(const Segment& s, Part& part) {
    part.queries += s.queries();
    part.own_keys = earlier_ + (seen_[at(s.slice)] += s.queries());
    if (stages_ == 1) {
      part.pairs[0] += s.queries() * (s.keys() - part.own_keys);
      return;
    }
    part.pairs[0] += s.queries() * (of_->tokens.earlier - earlier_);
    const std::int64_t first = blocks_.place_of(s.slice, std::numeric_limits<std::int64_t>::min());
    const std::int64_t last = blocks_.place_of(s.slice, s.q_begin);
    for (int stage = 0; stage < stages_; ++stage) {
      const CastBlocks::Range places = blocks_.places_of(stage);
      const std::int64_t keys = std::min(last, places.end) - std::max(first, places.begin);
      part.pairs[at(stage)] += s.queries() * std::max<std::int64_t>(0, keys);
    }
  }
  void finish(Part& part) {
    if (part.queries > 0) own.push_back({part.queries, part.own_keys});
    for (std::size_t stage = 0; stage < part.pairs.size(); ++stage)
      if (const std::int64_t pairs = part.pairs[stage]; pairs > 0)
        add_rectangle(part.queries, (pairs + part.queries - 1) / part.queries, arrived[stage]);
    part = {};
  }
  // Prices queries that all see the same keys as causal calls with as many pairs, up to half a pair per query
  // more. A kernel computes at least a tile of keys. A causal call has no fewer keys than queries, so many
  // queries become several calls.
  static void add_rectangle(std::int64_t queries, std::int64_t keys, std::vector<QueryKeys>& calls) {
    constexpr std::int64_t kTile = 128;
    const std::int64_t most = 2 * std::max(keys, kTile);
    for (std::int64_t left = queries; left > 0; left -= most) {
      const std::int64_t count = std::min(left, most);
      calls.push_back({count, std::max(keys + count / 2, count)});
    }
  }

  const ContextCase* of_ = nullptr;
  int stages_ = 1;
  std::int64_t earlier_ = 0;  // the rank's share of earlier chunks
  CastBlocks blocks_;
  std::vector<std::int64_t> seen_;  // own keys, by slice
};

// If the backward has kept all keys, it begins with those from other ranks, so that their gradients return
// during the rest.
void attend_during_cast(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  const auto stages = at(of.tokens.cast.stages);
  const bool kept = of.costs.framework().keep_gathered_kv;
  out.forward.reset(of.context, stages);
  out.backward.reset(of.context, kept ? stages : stages == 1 ? 2 : stages + 2);
  const auto add_own = [&](std::size_t r, AttentionTimes times) {
    out.forward.add_under(0, r, times.forward);
    out.backward.add_under(kept ? stages - 1 : 0, r, of.backward(times));
  };
  const auto add_stage = [&](std::size_t stage, std::size_t r, AttentionTimes times) {
    const bool last = stage + 1 == stages;
    if (last)
      out.forward.add_run(stages, r, times.forward);
    else
      out.forward.add_under(stage + 1, r, times.forward);
    if (kept && stage > 0)
      out.backward.add_under(stage - 1, r, of.backward(times));
    else if (kept || stages == 1)
      out.backward.add_run(kept ? 0 : 1, r, of.backward(times));
    else
      out.backward.add_under(stage + 1, r, of.backward(times));
  };
  const auto time_of = [&](const std::vector<QueryKeys>& pieces) {
    if (pieces.empty()) return AttentionTimes{};
    return of.costs.attention.times(pieces, use, 0, of.head_shares);
  };
  thread_local CastCalls calls;
  calls.begin(of);
  for (std::size_t r = 0; r < at(of.context); ++r) {
    if (of.window > 0) {
      const RankAttention all = rank_attention(of, static_cast<int>(r), use);
      add_own(r, all.placed);
      add_stage(0, r, all.distributed);
      continue;
    }
    calls.find(static_cast<int>(r));
    add_own(r, time_of(calls.own));
    for (std::size_t stage = 0; stage < stages; ++stage) add_stage(stage, r, time_of(calls.arrived[stage]));
  }
}

}  // namespace

constinit const ContextForm kGroupCastForm = {
    .held_tokens = [](std::int64_t, std::int64_t group_tokens, int) { return group_tokens; },
    .count =
        [](const TokensCase& of, ExchangedTokens& tokens) {
          if (of.sharding.ranks() > 1)
            tokens.cast =
                cast_tokens(of.micro_batch, of.sharding, of.window, of.layout, tokens.earlier, of.node_ranks);
        },
    .exchange = cast_blocks,
    .attend = attend_during_cast,
};

}  // namespace equipoise
