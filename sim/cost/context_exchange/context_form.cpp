#include "sim/cost/context_exchange/context_form.h"

#include <cassert>

#include "policies/base/text.h"

namespace equipoise {

static const std::vector<int>& placement_of(const ContextCase& of) {
  return placement_of(of.micro_batch, of.sharding);
}

// Runs of consecutive keys that a rank's queries see. A query sees the keys from its document's first up to
// its own, so a new run begins only after a document's end.
static std::int64_t key_runs(const MicroBatch& micro_batch, const Sharding& sharding, int rank) {
  const std::vector<int>& placement = placement_of(micro_batch, sharding);
  std::int64_t runs = 0;
  const Segment* last = nullptr;
  for (const Segment& s : sharding.of_rank(rank)) {
    if (is_placed(placement, s)) continue;  // its keys belong to no other rank
    const bool strided =
        sharding.pieces.strided && last != nullptr && s.slice == last->slice;  // single tokens
    const bool follows = last != nullptr && s.slice == last->slice + 1 &&
                         last->q_end >= micro_batch.slices[at(last->slice)].end;
    runs += strided || follows ? 0 : 1;
    last = &s;
  }
  return runs;
}

static ExchangedTokens sums_over_ranks(const Sharding& sharding, int inner) {
  ExchangedTokens tokens;
  std::int64_t of_inner = 0;
  for (std::size_t r = 0; r < sharding.rank_tokens.size(); ++r) {
    tokens.distributed += sharding.rank_tokens[r] - sharding.rank_local_tokens[r];
    tokens.placed += sharding.rank_local_tokens[r];
    tokens.fullest = std::max(tokens.fullest, sharding.rank_tokens[r]);
    of_inner = (r % at(inner) == 0 ? 0 : of_inner) + sharding.rank_tokens[r];
    tokens.fullest_inner = std::max(tokens.fullest_inner, of_inner);
  }
  return tokens;
}

ExchangedTokens exchanged_tokens(const TokensCase& of) {
  const Sharding& sharding = of.sharding;
  ExchangedTokens tokens = sums_over_ranks(sharding, of.layout.inner_ranks(sharding.ranks()));
  tokens.earlier = earlier_tokens(of.micro_batch, of.window);
  // No rank has more runs than segments: those of few need not be counted.
  if (of.layout.acting_facts().brings_keys && !of.micro_batch.slices.empty())
    for (int r = 0; r < sharding.ranks(); ++r)
      if (sharding.of_rank(r).size() > at(tokens.key_runs))
        tokens.key_runs = std::max(tokens.key_runs, key_runs(of.micro_batch, sharding, r));
  context_form(of.layout).count(of, tokens);
  return tokens;
}

ExchangedTokens exchanged_tokens(const MicroBatch& micro_batch, const Sharding& sharding, Mixer mixer,
                                 const LayerCosts& costs, const StagePool* pool) {
  if (mixer == Mixer::recurrence) return sums_over_ranks(sharding, 1);
  const std::int64_t window = costs.model().indexer ? 0 : costs.attention.window_of(mixer);
  const int node_ranks = cast_node_ranks(costs.layout(), costs.grid(), sharding.ranks());
  ExchangedTokens tokens = exchanged_tokens(
      {micro_batch, sharding, window, costs.layout(), node_ranks, pool == nullptr ? &costs : nullptr});
  if (pool != nullptr) tokens.tasks = &pool->tasks;
  return tokens;
}

Op uneven_all_to_all(const LayerCosts& costs, double bytes, const ContextGroup& group, RangeUse& use) {
  Op op{OpName::cp_all_to_all, Stream::cp};
  op.bytes = bytes * group.ranks / (group.ranks - 1);  // a rank keeps its own part of the send buffer
  op.duration =
      to_picoseconds(costs.kernels.collectives().seconds(Collective::all_to_all, op.bytes, group.shape, use));
  // Our own ranks copy rows into messages and out of them.
  if (costs.framework().own_kernels)
    op.duration += costs.kernels.moves(op.name, Elementwise::copy, 4 * bytes, use).duration;
  return op;
}

ContextGroup context_group(const LayerCosts& costs, int context, const StagePool* pool) {
  if (pool != nullptr) return pool->group;
  return {context, costs.grid().context_shape(context), as_double(costs.kv_bytes_per_token())};
}

std::string ranks_of_heads(const ModelShape& model, const Layout& layout, int degree) {
  if (const int heads = model.heads / layout.tensor;
      heads % context_form(layout).head_shares(layout, degree) != 0)
    return concatenated("a divisor of the ", heads, " query heads of a TP rank (context_comm ",
                        name_of(layout.acting_form()), ")");
  if (!model.recurrence) return "";
  const RecurrentShape recurrence = model.recurrence->of_rank(layout.tensor);
  if (recurrence.heads % degree != 0)
    return concatenated("a divisor of the ", recurrence.heads, " heads of a TP rank's linear recurrences");
  if (const int keys = recurrence.key_heads; keys % degree != 0 && degree % keys != 0)
    return concatenated("a divisor or multiple of the ", keys,
                        " key heads of a TP rank's linear recurrences");
  return "";
}

void add_exchanges(const ContextForm& form, const LayerCosts& costs, const ExchangedTokens& tokens,
                   const ContextGroup& group, ContextExchanges& out, RangeUse& use) {
  thread_local ContextExchanges own;
  form.exchange(costs, tokens, group, own, use);
  out.forward.insert(out.forward.end(), own.forward.begin(), own.forward.end());
  out.backward.insert(out.backward.end(), own.backward.begin(), own.backward.end());
}

Picoseconds exchange_time(const ContextForm& form, const LayerCosts& costs, const ExchangedTokens& tokens,
                          int context, RangeUse& use) {
  thread_local ContextExchanges exchanges;
  form.exchange(costs, tokens, context_group(costs, context), exchanges, use);
  Picoseconds sum = 0;
  for (const auto* pass : {&exchanges.forward, &exchanges.backward})
    for (const Op& exchange : *pass) sum += exchange.duration;
  return sum;
}

double least_exchange_seconds(const LayerCosts& costs, int context) {
  return context > 1 ? context_form(costs).least_seconds(costs, context_group(costs, context)) : 0;
}

RankAttention rank_attention(const ContextCase& of, int rank, RangeUse& use) {
  const auto segments = of.sharding.of_rank(rank);
  if (of.tokens.placed == 0)
    return {{}, of.attention.times(segments, of.sharding.pieces, of.window, of.head_shares, use)};
  const std::vector<int>& placement = placement_of(of);
  const auto priced = [&](bool placed) {
    thread_local std::vector<QueryKeys> pieces;
    pieces.clear();
    for (const Segment& s : segments)
      if (is_placed(placement, s) == placed)
        pieces.push_back({s.queries(), s.keys(), of.sharding.pieces.rows});
    return of.costs.attention.times(pieces, use, of.window, of.head_shares);
  };
  const AttentionTimes placed = priced(true);
  return {placed, priced(false)};
}

void attend_alone(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  out.forward.reset(of.context, 0);
  out.backward.reset(of.context, 0);
  for (std::size_t r = 0; r < at(of.context); ++r) {
    const RankAttention rank = rank_attention(of, static_cast<int>(r), use);
    out.forward.add_run(0, r, rank.placed.forward + rank.distributed.forward);
    out.backward.add_run(0, r, of.backward(rank.placed) + of.backward(rank.distributed));
  }
}

// A dependent chunk's group also exchanges the K and V of the chunks before it, of which every rank holds its
// share.
static ReceivedTokens received_by_ranks(const ContextCase& of) {
  struct SeenKeys {  // by slice, up to the last rank that holds a piece of it
    int rank = -1;
    std::int64_t end = 0;
  };
  thread_local std::vector<SeenKeys> seen_keys;  // by slice
  const std::vector<int>& placement = placement_of(of);
  const auto& rank_tokens = of.sharding.rank_tokens;
  const auto& local_tokens = of.sharding.rank_local_tokens;
  // Tokens of earlier chunks that a rank does not hold.
  const double before = as_double(of.tokens.earlier) * (of.context - 1) / of.context;
  const bool casts = of.costs.layout().acting_facts().casts;
  const std::int64_t window = of.costs.model().indexer ? 0 : of.window;  // chosen keys may lie anywhere
  ReceivedTokens tokens;
  seen_keys.assign(of.micro_batch.slices.size(), {});
  for (int r = 0; r < of.context; ++r) {
    const std::int64_t own = rank_tokens[at(r)] - local_tokens[at(r)];
    if (!casts) tokens.sent += as_double(of.tokens.distributed - own) + before;
    // A rank holds several pieces of a slice, in document order. Each sees its own keys, and of earlier keys
    // those that no earlier piece has seen.
    std::int64_t others = 0;
    bool any = false;
    for (const Segment& s : of.sharding.of_rank(r)) {
      if (is_placed(placement, s)) continue;
      const std::int64_t first = window > 0 ? std::max(s.kv_begin, s.q_begin - window + 1) : s.kv_begin;
      SeenKeys& seen = seen_keys[at(s.slice)];
      const std::int64_t from = seen.rank == r ? std::max(first, seen.end) : first;
      assert(from <= s.q_begin);
      others += s.q_begin - from;
      seen = {r, s.q_end};
      any = true;
    }
    if (casts && any) tokens.sent += before;
    tokens.useful += as_double(others);
    if (any && before > 0) tokens.useful -= before / (of.context - 1);  // its own share of them
  }
  if (casts) tokens.sent += as_double(of.tokens.cast.received);
  return tokens;
}

void merge_inner_ranks(const Sharding& sharding, int inner, Sharding& out) {
  join_ranks(sharding, inner, out);
  out.rank_tokens.clear();
  out.rank_local_tokens.clear();
  out.placement = sharding.placement;
  out.pieces = sharding.pieces;
  for (std::size_t first = 0; first < sharding.rank_tokens.size(); first += at(inner)) {
    out.rank_tokens.push_back(0);
    out.rank_local_tokens.push_back(0);
    for (std::size_t r = first; r < first + at(inner); ++r) {
      out.rank_tokens.back() += sharding.rank_tokens[r];
      out.rank_local_tokens.back() += sharding.rank_local_tokens[r];
    }
  }
}

// Ranks that share the heads have all queries of their group, so each key of the group is seen at least by
// its own query. Each rank of an inner group receives, for its heads, what the group receives from others.
ReceivedTokens received_tokens(const ContextCase& of) {
  if (of.tokens.tasks != nullptr) {  // all keys up to the last query of a slice are seen
    const auto received = static_cast<double>(of.tokens.tasks->received);
    return {received, received};
  }
  if (of.merged == nullptr) return received_by_ranks(of);
  const Sharding& merged = *of.merged;
  const int shares = of.context / merged.ranks();
  const ContextCase outer{of.costs,  of.attention,        of.micro_batch, merged,
                          of.tokens, of.context / shares, of.window};
  ReceivedTokens tokens;
  if (outer.context > 1) tokens = received_by_ranks(outer);
  tokens.sent *= shares;
  tokens.useful *= shares;
  for (int r = 0; r < of.context; ++r) {
    const auto own = [&](const Sharding& sharding, int rank) {
      return as_double(sharding.rank_tokens[at(rank)] - sharding.rank_local_tokens[at(rank)]);
    };
    const double inside = own(merged, r / shares) - own(of.sharding, r);
    tokens.sent += inside;
    tokens.useful += inside;
  }
  return tokens;
}

}  // namespace equipoise
