#include "sim/cost/micro_batch_cost.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/sharding/kernel_pieces.h"

namespace equipoise {
namespace {

constexpr std::size_t kMemoSlots = 128;

void to_pieces(std::span<const Segment> segments, bool strided, std::vector<QueryKeys>& pieces) {
  pieces.clear();
  for_each_kernel_piece(segments, strided, [&pieces](std::int64_t queries, std::int64_t keys) {
    pieces.push_back({queries, keys});
  });
}

AttentionCall count_segments(std::span<const Segment> segments, bool strided, std::int64_t window) {
  return count_call(window, [&](const auto& add) { for_each_kernel_piece(segments, strided, add); });
}

bool same_piece(const QueryKeys& a, const QueryKeys& b) {
  return a.queries == b.queries && a.keys == b.keys;
}

// The packer's placements, or those that the sharding rule decided (dacp).
const std::vector<int>& placement_of(const MicroBatch& micro_batch, const Sharding& sharding) {
  return sharding.placement.empty() ? micro_batch.placement : sharding.placement;
}

}  // namespace

bool costs_alike(const MicroBatch& a, const MicroBatch& b) {
  if (a.slices.size() != b.slices.size() || a.placement != b.placement || a.pad_each_to != b.pad_each_to ||
      a.chunk.count > 1 || b.chunk.count > 1)
    return false;
  for (std::size_t i = 0; i < a.slices.size(); ++i)
    if (a.slices[i].tokens() != b.slices[i].tokens()) return false;
  return true;
}

std::span<const int> ring_backward_sends(int context) {
  thread_local std::vector<int> sends;
  sends.clear();
  for (int step = 0; step < context; ++step)
    if (const int blocks = (step + 1 < context ? 1 : 0) + (step >= 2 ? 1 : 0); blocks > 0)
      sends.push_back(blocks);
  sends.push_back(1);
  return sends;
}

double ProfiledAttentionCost::seconds(std::span<const Segment> segments) const {
  RangeUse use;  // a decision, not a prediction of the run
  const auto layer = [&](std::int64_t window) {
    if (costs_.prices_counts()) {
      counted_.push_back({segments, window, count_segments(segments, false, window)});
      return to_seconds(costs_.attention_forward_time(counted_.back().call, use));
    }
    thread_local std::vector<QueryKeys> pieces;
    to_pieces(segments, false, pieces);
    return to_seconds(costs_.attention_forward_time(pieces, use, window));
  };
  const double sliding = costs_.sliding_share();
  double seconds = 0;
  if (sliding < 1) seconds += (1 - sliding) * layer(0);
  if (sliding > 0) seconds += sliding * layer(costs_.model().sliding_window);
  return seconds;
}

const AttentionCall* ProfiledAttentionCost::known(std::span<const Segment> segments,
                                                  std::int64_t window) const {
  for (const CountedAttention& counted : counted_)
    if (counted.segments.data() == segments.data() && counted.segments.size() == segments.size() &&
        counted.window == window)
      return &counted.call;
  return nullptr;
}

AttentionCounts ProfiledAttentionCost::counts_of(const Sharding& sharding) const {
  AttentionCounts counts;
  const Segment* const begin = sharding.segments.data();
  constexpr std::less<> before{};
  for (const CountedAttention& counted : counted_)
    if (!before(counted.segments.data(), begin) &&
        before(counted.segments.data(), begin + sharding.segments.size()))
      counts.push_back(counted);
  return counts;
}

MicroBatchCoster::MicroBatchCoster(const LayerCosts& costs, const ShardRule& rule)
    : costs_(costs), rule_(rule), attention_(costs) {
  for (std::size_t k = 0; k < kLayerKinds; ++k)
    if (costs.layer_counts()[k] > 0) memo_[k].resize(kMemoSlots);
  end_memo_.resize(kMemoSlots);
}

void MicroBatchCoster::ContextPart::reset(int ranks, std::size_t syncs) {
  run.assign((syncs + 1) * at(ranks), 0);
  under.assign(syncs * at(ranks), 0);
  comm.assign(syncs, 0);
  busy.assign(at(ranks), 0);
}

void MicroBatchCost::begin(int context, const LayerCounts& layers) {
  ranks = context;
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    const int of_kind = layers[k] > 0 ? context : 0;
    for (LayerTimeline* layer : {&forward[k], &backward[k], &full[k], &input_gradient[k]})
      layer->reset(of_kind);
    for (auto* of_rank : {&weight_gradient[k], &compute_forward[k], &compute_backward[k]})
      of_rank->assign(at(of_kind), 0);
    exposed_forward[k].fill(0);
    exposed_backward[k].fill(0);
  }
  for (std::size_t mask = 0; mask < kMasks; ++mask) {
    attention_forward[mask].assign(at(context), 0);
    attention_backward[mask].assign(at(context), 0);
  }
  recomputed.fill(0);
  kv_sent_tokens = kv_useful_tokens = 0;
  use = {};
}

Picoseconds MicroBatchCoster::model_time(const MicroBatch& micro_batch, const MicroBatchCost& cost) const {
  const ModelShape& model = costs_.model();
  const LayerCounts& layers = costs_.layer_counts();
  int recomputed = micro_batch.recompute_layers != kStudyRecompute
                       ? micro_batch.recompute_layers
                       : checkpointed_layers(costs_.layout(), model.layers);
  std::vector<Picoseconds> clock = cost.embed_forward.total;
  const auto add = [&clock](const EndCost& end) {
    for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += end.total[r];
  };
  for (std::size_t k = 0; k < kLayerKinds; ++k) advance(cost.forward[k], layers[k], clock);
  add(cost.head_forward);
  add(cost.head_backward);
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    const int again = std::min(recomputed, layers[k]);
    recomputed -= again;
    advance(cost.full[k], again, clock);
    advance(cost.backward[k], layers[k] - again, clock);
  }
  add(cost.embed_backward);
  return *std::max_element(clock.begin(), clock.end());
}

namespace {

// The study's own degree is checked with its layout; policies form groups of other degrees.
void check_heads(const LayerCosts& costs, int context) {
  if (costs.layout().context_comm != ContextComm::ulysses) return;
  const int heads = costs.model().heads / costs.layout().tensor;
  if (heads % context != 0)
    throw UserError("parallel.context_comm: ulysses with a CP group of " + std::to_string(context) +
                    " ranks; allowed: divisors of the " + std::to_string(heads) +
                    " query heads of a TP rank");
}

}  // namespace

void MicroBatchCoster::cost(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  shard(micro_batch, context, out);
  // `optimal` has found all of it.
  if (rule_.choice != ShardChoice::optimal) cost_sharded(micro_batch, context, out);
}

void MicroBatchCoster::shard(const MicroBatch& micro_batch, int context, MicroBatchCost& out,
                             AttentionCounts& counts) {
  shard(micro_batch, context, out);
  counts = attention_.counts_of(out.sharding);
}

void MicroBatchCoster::shard(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  check_heads(costs_, context);
  attention_.forget();
  if (rule_.choice != ShardChoice::optimal) {
    const ShardPolicy& rule =
        rule_.choice == ShardChoice::adaptive ? sharding_policy("adaptive") : *rule_.fixed;
    rule.shard(micro_batch, context, rule_.options, attention_, out.sharding);
    return;
  }
  // `optimal`: both rules simulated, the better taken.
  sharding_policy("per-sequence").shard(micro_batch, context, rule_.options, attention_, out.sharding);
  cost_sharded(micro_batch, context, out);
  if (context == 1) return;
  sharding_policy("per-document").shard(micro_batch, context, rule_.options, attention_, other_.sharding);
  cost_sharded(micro_batch, context, other_);
  if (model_time(micro_batch, other_) < model_time(micro_batch, out)) std::swap(out, other_);
}

void MicroBatchCoster::cost_sharded(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  const double load = costs_.expert_load(micro_batch);
  own_.clear();
  for (const std::int64_t tokens : out.sharding.rank_tokens) {
    own_.push_back(costs_.sent_to_experts(tokens));
    own_.back().load = load;
  }
  cost_sharded(micro_batch, context, own_, out);
}

void MicroBatchCoster::cost_sharded(const MicroBatch& micro_batch, int context,
                                    std::span<const ExpertArrivals> arriving, const AttentionCounts& counts,
                                    MicroBatchCost& out) {
  attention_.remember(counts);
  cost_sharded(micro_batch, context, arriving, out);
}

void MicroBatchCoster::cost_sharded(const MicroBatch& micro_batch, int context,
                                    std::span<const ExpertArrivals> arriving, MicroBatchCost& out) {
  const LayerCounts& layers = costs_.layer_counts();
  out.begin(context, layers);
  out.arriving.assign(arriving.begin(), arriving.end());
  for (std::size_t mask = 0; mask < kMasks; ++mask) {
    bool attended = false;  // the mask's attention, which its layers share
    for (int k = 0; k < kLayerKinds; ++k) {
      const auto kind = static_cast<LayerKind>(k);
      if (mask_of(kind) != mask || layers[at(k)] == 0) continue;
      if (!attended && context > 1 && costs_.layout().context_comm == ContextComm::ring)
        cost_ring_attention(micro_batch, context, out);
      else if (!attended)
        cost_attention(micro_batch, context, costs_.window_of(kind), out);
      attended = true;
      build_layer(kind, out);
    }
  }
  build_ends(out);
}

LayerCosts::AttentionTimes MicroBatchCoster::attend(std::span<const Segment> segments, bool strided,
                                                    std::int64_t window, int ulysses, RangeUse& use) {
  if (costs_.prices_counts()) {
    const AttentionCall* const known = strided ? nullptr : attention_.known(segments, window);
    return costs_.attention_times(known ? *known : count_segments(segments, strided, window), use, ulysses);
  }
  to_pieces(segments, strided, pieces_);
  return costs_.attention_times(pieces_, use, window, ulysses);
}

// All-gather and Ulysses, and a lone rank. Slices placed on one rank (Skrull) are computed while the K and V
// of the distributed ones are gathered.
void MicroBatchCoster::cost_attention(const MicroBatch& micro_batch, int context, std::int64_t window,
                                      MicroBatchCost& out) {
  const std::size_t mask = window > 0 ? 1 : 0;
  const Sharding& sharding = out.sharding;
  const std::int64_t all =
      std::accumulate(sharding.rank_tokens.begin(), sharding.rank_tokens.end(), std::int64_t{0});
  const std::int64_t local =
      std::accumulate(sharding.rank_local_tokens.begin(), sharding.rank_local_tokens.end(), std::int64_t{0});
  // Dependent chunks also attend to the K and V of the chunks before them, which the group holds in shards.
  const std::int64_t gathered = all - local + earlier_tokens(micro_batch, window);
  const bool exchanges = context > 1 && gathered > 0;
  const bool ulysses = exchanges && costs_.layout().context_comm == ContextComm::ulysses;
  forward_.reset(context, ulysses ? 2 : exchanges ? 1 : 0);
  backward_.reset(context, exchanges ? 2 : 0);
  recompute_.assign(at(context), 0);
  const auto c = at(context);

  const std::vector<int>& placement = placement_of(micro_batch, sharding);
  const auto placed = [&](const Segment& s) {
    return !placement.empty() && placement[at(s.slice)] != kDistributed;
  };
  LayerCosts::AttentionTimes of_all;
  if (ulysses)  // every rank sees all queries of its share of the heads
    of_all = attend(sharding.segments, sharding.strided, window, context, out.use);
  for (std::size_t r = 0; r < c; ++r) {
    const auto segments = sharding.of_rank(static_cast<int>(r));
    LayerCosts::AttentionTimes under, run = of_all;
    if (!ulysses && local > 0) {
      const auto priced = [&](bool are_placed) {
        pieces_.clear();
        for (const Segment& s : segments)
          if (placed(s) == are_placed) pieces_.push_back({s.queries(), s.keys()});
        return costs_.attention_times(pieces_, out.use, window);
      };
      under = priced(true);
      run = priced(false);
    } else if (!ulysses) {
      run = attend(segments, sharding.strided, window, 1, out.use);
    }
    out.attention_forward[mask][r] = forward_.busy[r] = run.forward + under.forward;
    recompute_[r] = costs_.layout().repeats(RecomputeModule::core_attn) ? run.forward + under.forward : 0;
    out.attention_backward[mask][r] = backward_.busy[r] = run.backward + under.backward + recompute_[r];
    if (!exchanges) {
      forward_.run[r] = run.forward + under.forward;
      backward_.run[r] = backward_.busy[r];
    } else {
      forward_.under[r] = under.forward;
      forward_.run[c + r] = run.forward;
      const bool selective = costs_.layout().repeats(RecomputeModule::core_attn);
      backward_.under[r] = under.backward + (selective ? under.forward : 0);
      backward_.run[c + r] = run.backward + (selective ? run.forward : 0);
    }
  }
  if (!exchanges) return;
  if (ulysses) {
    const std::int64_t most = *std::max_element(sharding.rank_tokens.begin(), sharding.rank_tokens.end());
    forward_.comm = {costs_.ulysses_exchange(most, context, false, out.use).duration,
                     costs_.ulysses_exchange(most, context, true, out.use).duration};
    backward_.comm = {forward_.comm[1], forward_.comm[0]};
  } else {
    forward_.comm[0] = costs_.kv_all_gather(gathered, context, out.use).duration;
    backward_.comm = {forward_.comm[0], costs_.kv_reduce_scatter(gathered, context, out.use).duration};
  }
  count_kv(micro_batch, context, window, out);
}

// Segments of each rank by slice and place, so that two ranks' lists can be walked side by side.
void MicroBatchCoster::sort_ring(const Sharding& sharding, int context) {
  ring_.resize(sharding.segments.size());
  for (int r = 0; r < context; ++r) {
    const auto segments = sharding.of_rank(r);
    const auto begin = ring_.begin() + (segments.data() - sharding.segments.data());
    const auto end = begin + static_cast<std::ptrdiff_t>(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i)
      begin[static_cast<std::ptrdiff_t>(i)] = {segments[i].slice, static_cast<std::uint32_t>(i),
                                               segments[i].q_begin, segments[i].q_end};
    std::sort(begin, end, [](const RingSegment& a, const RingSegment& b) {
      return std::tie(a.slice, a.begin) < std::tie(b.slice, b.begin);
    });
  }
}

// The pieces of rank `rank`'s call on the block that rank `from` began with. What a run of queries sees of a
// block is one piece: the keys of its slice lie together there. O(segments of both).
void MicroBatchCoster::ring_pieces(const Sharding& sharding, int rank, int from, std::int64_t earlier) {
  const auto sorted = [&](int r) {
    const auto segments = sharding.of_rank(r);
    return std::span(ring_).subspan(static_cast<std::size_t>(segments.data() - sharding.segments.data()),
                                    segments.size());
  };
  const auto queries = sharding.of_rank(rank);
  const std::span<const RingSegment> block = sorted(from);
  ring_keys_.resize(queries.size());
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
    ring_keys_[q.place] = seen;
  }
  pieces_.clear();
  for (std::size_t i = 0; i < queries.size(); ++i) {
    std::int64_t keys = earlier + ring_keys_[i];
    if (keys == 0) continue;
    // Of another rank's block every query sees all: priced as the causal call that has as many pairs.
    const std::int64_t count = queries[i].queries();
    if (from != rank) keys = std::max(keys + (count - 1) / 2, count);
    pieces_.push_back({count, keys});
  }
}

// Ring: in step k a rank attends to the K and V that started on rank r - k, while the next ones arrive.
// O(ranks x segments), and a price for each of the ranks' steps that is unlike the one before.
void MicroBatchCoster::cost_ring_attention(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  const Sharding& sharding = out.sharding;
  const auto c = at(context);
  const std::span<const int> backward_sends = ring_backward_sends(context);
  forward_.reset(context, c - 1);
  backward_.reset(context, backward_sends.size());
  recompute_.assign(c, 0);
  const bool selective = costs_.layout().repeats(RecomputeModule::core_attn);
  // Of the chunks before a dependent one every rank holds its share.
  const std::int64_t earlier = (earlier_tokens(micro_batch, 0) + context - 1) / context;
  std::int64_t most = 0;
  Picoseconds f = 0, b = 0;
  RangeUse of_pieces;
  sort_ring(sharding, context);
  ring_priced_.clear();
  for (std::size_t r = 0; r < c; ++r) {
    most = std::max(most, sharding.rank_tokens[r] + earlier);
    for (std::size_t step = 0; step < c; ++step) {
      ring_pieces(sharding, static_cast<int>(r), static_cast<int>((r + c - step) % c), earlier);
      // Even slices give a rank the same pieces on most blocks.
      if (ring_priced_.empty() || !std::ranges::equal(pieces_, ring_priced_, same_piece)) {
        of_pieces = {};
        const LayerCosts::AttentionTimes times = costs_.attention_times(pieces_, of_pieces);
        f = times.forward;
        b = times.backward + (selective ? f : 0);
        ring_priced_ = pieces_;
      }
      out.use += of_pieces;
      out.attention_forward[0][r] += f;
      forward_.busy[r] += f;
      backward_.busy[r] += b;
      out.attention_backward[0][r] += b;
      if (selective) recompute_[r] += f;
      (step + 1 < c ? forward_.under[step * c + r] : forward_.run[(c - 1) * c + r]) = f;
      // Two ranks send nothing beside the second step.
      (context > 2 || step == 0 ? backward_.under[step * c + r] : backward_.run[c + r]) = b;
    }
  }
  for (Picoseconds& comm : forward_.comm) comm = costs_.ring_step(most, context, false, out.use).duration;
  for (std::size_t i = 0; i < backward_sends.size(); ++i)
    backward_.comm[i] = costs_.ring_step(most, context, backward_sends[i] == 2, out.use).duration;
  count_kv(micro_batch, context, 0, out);
}

// K and V rows that cross ranks, and those that some query of the receiver attends to. A dependent chunk's
// group also exchanges the rows of the chunks before it, of which every rank holds its share.
void MicroBatchCoster::count_kv(const MicroBatch& micro_batch, int context, std::int64_t window,
                                MicroBatchCost& out) {
  const Sharding& sharding = out.sharding;
  const std::vector<int>& placement = placement_of(micro_batch, sharding);
  const double layers = window > 0 ? costs_.sliding_share() : 1 - costs_.sliding_share();
  std::int64_t all = 0;
  for (std::size_t r = 0; r < at(context); ++r)
    all += sharding.rank_tokens[r] - sharding.rank_local_tokens[r];
  // Rows of earlier chunks that a rank does not hold.
  const double before = static_cast<double>(earlier_tokens(micro_batch, window)) * (context - 1) / context;
  double sent = 0, useful = 0;
  seen_keys_.assign(micro_batch.slices.size(), {});
  for (int r = 0; r < context; ++r) {
    const std::int64_t own = sharding.rank_tokens[at(r)] - sharding.rank_local_tokens[at(r)];
    sent += static_cast<double>(all - own) + before;
    // A rank holds several pieces of a slice, in document order. Each sees its own keys, and of those before
    // it the ones that no earlier piece has seen.
    std::int64_t others = 0;
    bool any = false;
    for (const Segment& s : sharding.of_rank(r)) {
      if (!placement.empty() && placement[at(s.slice)] != kDistributed) continue;
      const std::int64_t first = window > 0 ? std::max(s.kv_begin, s.q_begin - window + 1) : s.kv_begin;
      SeenKeys& seen = seen_keys_[at(s.slice)];
      const std::int64_t from = seen.rank == r ? std::max(first, seen.end) : first;
      assert(from <= s.q_begin);
      others += s.q_begin - from;
      seen = {r, s.q_end};
      any = true;
    }
    useful += static_cast<double>(others);
    if (any && before > 0) useful -= before / (context - 1);  // its own share of them
  }
  // Ulysses: a rank has all queries of its heads, each key is seen at least by its own.
  if (costs_.layout().context_comm == ContextComm::ulysses) useful = sent;
  out.kv_sent_tokens += layers * sent;
  out.kv_useful_tokens += layers * useful;
}

}  // namespace equipoise
