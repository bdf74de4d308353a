#include "sim/cost/micro_batch_cost.h"

#include <cassert>
#include <numeric>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {
namespace {

// With 128, the numbers of tokens of a large step displaced each other.
constexpr std::size_t kMemoSlots = 2048;

// The study's own degree is checked with its layout; policies form groups of other degrees.
void check_heads(const LayerCosts& costs, int context) {
  const std::string allowed = ranks_of_heads(costs.model(), costs.layout(), context);
  if (!allowed.empty()) throw UserError("a CP group of ", context, " ranks: allowed are ", allowed);
}

LocalWork& operator+=(LocalWork& sum, const LocalWork& more) {
  sum.forward_before += more.forward_before;
  sum.forward_after += more.forward_after;
  sum.backward_before += more.backward_before;
  sum.backward_after += more.backward_after;
  sum.recomputed += more.recomputed;
  sum.weight += more.weight;
  sum.held.tokens += more.held.tokens;
  sum.before_launches = sum.before_launches + more.before_launches;
  sum.forward_launches = sum.forward_launches + more.forward_launches;
  sum.backward_launches = sum.backward_launches + more.backward_launches;
  sum.behind_lengths = sum.behind_lengths + more.behind_lengths;
  sum.use += more.use;
  return sum;
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

MicroBatchCoster::MicroBatchCoster(const LayerCosts& costs, const ShardRule& rule)
    : costs_(costs), rule_(rule), attention_(costs) {
  for (std::size_t k = 0; k < kLayerKinds; ++k)
    if (costs.layer_counts()[k] > 0) memo_[k].resize(kMemoSlots);
  end_memo_.resize(kMemoSlots);
}

double MicroBatchCoster::remembered_bytes(int layer_kinds) {
  return static_cast<double>(kMemoSlots * (at(layer_kinds) * sizeof(LocalWork) + sizeof(EndWork)));
}

void MicroBatchCost::begin(int context, const LayerCounts& layers) {
  ranks = context;
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    const int of_kind = layers[k] > 0 ? context : 0;
    for (LayerTimeline* layer : {&forward[k], &again[k], &backward[k], &full[k], &input_gradient[k]})
      layer->reset(of_kind);
    for (auto* of_rank : {&weight_gradient[k], &compute_forward[k], &compute_again[k], &compute_backward[k]})
      of_rank->assign(at(of_kind), 0);
    for (auto* exposed : {&exposed_forward[k], &exposed_again[k], &exposed_backward[k]}) exposed->fill(0);
  }
  for (auto* of_mixers : {&attention_forward, &attention_backward})
    for (std::vector<Picoseconds>& of_rank : *of_mixers) of_rank.assign(at(context), 0);
  recomputed.fill(0);
  kv_sent_tokens = kv_useful_tokens = 0;
  cast_tokens = 0;
  use = {};
}

MicroBatchCoster::ModelTimes MicroBatchCoster::model_times(const MicroBatch& micro_batch,
                                                           const MicroBatchCost& cost) const {
  const ModelShape& model = costs_.model();
  const LayerCounts& layers = costs_.layer_counts();
  int recomputed = micro_batch.recompute_layers != kStudyRecompute
                       ? micro_batch.recompute_layers
                       : checkpointed_layers(costs_.layout(), model.all_layers());
  if (const auto& by_stage = micro_batch.recompute_by_stage; !by_stage.empty())
    recomputed = std::accumulate(by_stage.begin(), by_stage.end(), 0);
  std::vector<Picoseconds> clock = cost.embed_forward.total;
  const auto add = [&clock](const EndCost& end) {
    for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += end.total[r];
  };
  for (std::size_t k = 0; k < kLayerKinds; ++k) advance(cost.forward[k], layers[k], clock);
  add(cost.head_forward);
  const Picoseconds forward = *std::max_element(clock.begin(), clock.end());
  add(cost.head_backward);
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    const int through = costs_.backward_counts()[k], again = std::min(recomputed, through);
    recomputed -= again;
    advance(cost.full[k], again, clock);
    advance(cost.backward[k], through - again, clock);
  }
  add(cost.embed_backward);
  return {forward, *std::max_element(clock.begin(), clock.end())};
}

void MicroBatchCoster::cost(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  shard(micro_batch, context, out);
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
  const bool halves = costs_.layout().nano_batches_of(context) == 2;
  const auto shard_by = [&](const ShardPolicy& rule, Sharding& sharding) {
    if (halves)
      shard_in_halves(rule, micro_batch, context, rule_.options, attention_, sharding);
    else
      rule.shard(micro_batch, context, rule_.options, attention_, sharding);
    if (context == 1) join_touching(sharding);  // even if a rule cut them for its 2c chunks
    if (halves) attention_.forget();            // because the halves' segments no longer exist
    if (context > 1) context_form(costs_).check(micro_batch, sharding, halves, costs_);
  };
  if (rule_.choice != ShardChoice::optimal) {
    const ShardPolicy& rule =
        rule_.choice == ShardChoice::adaptive ? sharding_policy("adaptive") : *rule_.fixed;
    shard_by(rule, out.sharding);
    return;
  }
  // `optimal`: both rules simulated, the better taken.
  shard_by(sharding_policy("per-sequence"), out.sharding);
  cost_sharded(micro_batch, context, out);
  if (context == 1) return;
  shard_by(sharding_policy("per-document"), other_.sharding);
  cost_sharded(micro_batch, context, other_);
  if (model_times(micro_batch, other_).both < model_times(micro_batch, out).both) std::swap(out, other_);
}

void MicroBatchCoster::cost_sharded(const MicroBatch& micro_batch, int context, MicroBatchCost& out) {
  const double load = costs_.experts.load(micro_batch);
  own_.clear();
  for (const std::int64_t tokens : out.sharding.rank_tokens) {
    own_.push_back(costs_.experts.sent_to_experts(tokens));
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
  if (costs_.model().chunked) cut_into_chunks(out.sharding, costs_.model().sliding_window, out.chunks);
  halves_ = costs_.layout().nano_batches_of(context) == 2;
  forwards_ = micro_batch.chunk.count > 1 ? 2 : 1;
  count_held(costs_.basis, micro_batch, out.sharding, held_);
  out.arriving.assign(arriving.begin(), arriving.end());
  for (int m = 0; m < kMixers; ++m) {
    const auto mixer = static_cast<Mixer>(m);
    if (costs_.basis.mixers[at(m)] == 0) continue;
    cost_mixer(mixer, micro_batch, context, out);  // which the mixer's layers share
    for (int k = 0; k < kLayerKinds; ++k)
      if (const auto kind = static_cast<LayerKind>(k); mixer_of(kind) == mixer && layers[at(k)] > 0)
        build_layer(kind, out);
  }
  build_ends(out);
}

void MicroBatchCoster::cost_mixer(Mixer mixer, const MicroBatch& micro_batch, int context,
                                  MicroBatchCost& out) {
  const std::int64_t window = costs_.attention.window_of(mixer);
  const Sharding& seen = out.seen_by(window);
  const ExchangedTokens tokens = exchanged_tokens(micro_batch, seen, mixer, costs_, out.pool.get());
  ContextCase of{costs_, attention_, micro_batch, seen, tokens, context, window};
  const int shares = context_form(costs_).head_shares(costs_.layout(), context);
  if (attends(mixer) && shares > 1) {
    merge_inner_ranks(seen, shares, merged_);
    of.merged = &merged_;
  }
  out.cast_tokens = std::max(out.cast_tokens, tokens.held());
  exchanges_.clear();
  RangeUse of_layer;
  if (attends(mixer)) cost_attention(of, mixer, of_layer, out);
  if (recurs(mixer)) cost_recurrence(of, mixer, of_layer, out);
  out.use.add(of_layer, costs_.basis.mixers[at(mixer)]);
  assert(passes_.forward.under.size() == exchanges_.forward.size() * at(context) &&
         passes_.backward.under.size() == exchanges_.backward.size() * at(context));
}

// Every rank of the group takes part.
void MicroBatchCoster::exchange(const ContextForm& form, const ContextCase& of, const ContextGroup& group,
                                RangeUse& use) {
  RangeUse of_rank;
  add_exchanges(form, costs_, of.tokens, group, exchanges_, of_rank);
  use.add(of_rank, of.context);
}

void MicroBatchCoster::cost_attention(const ContextCase& of, Mixer mixer, RangeUse& use,
                                      MicroBatchCost& out) {
  const ContextForm& form = context_form(costs_);
  if (of.context > 1) exchange(form, of, context_group(costs_, of.context, out.pool.get()), use);
  const bool alone = exchanges_.forward.empty();
  (alone ? attend_alone : form.attend)(of, passes_, use);
  take_evened(out.evened, passes_, exchanges_);
  out.attention_forward[at(mixer)] = passes_.forward.busy;
  out.attention_backward[at(mixer)] = passes_.backward.busy;
  if (alone) return;
  const ReceivedTokens received = received_tokens(of);
  const double layers = costs_.basis.share_of(mixer);
  out.kv_sent_tokens += layers * received.sent;
  out.kv_useful_tokens += layers * received.useful;
}

void MicroBatchCoster::cost_recurrence(const ContextCase& of, Mixer mixer, RangeUse& use,
                                       MicroBatchCost& out) {
  if (of.context > 1) exchange(kRecurrenceForm, of, context_group(costs_, of.context), use);
  ContextPasses own;
  kRecurrenceForm.attend(of, own, use);
  out.attention_forward[at(Mixer::recurrence)] = own.forward.busy;
  out.attention_backward[at(Mixer::recurrence)] = own.backward.busy;
  if (!attends(mixer)) {
    passes_ = std::move(own);
    return;
  }
  passes_.forward.append(own.forward);
  passes_.backward.append(own.backward);
}

// ---- The layer timelines, from local op lists and the attention between exchanges ----

namespace {

constexpr auto kCompute = at(Stream::compute);
constexpr auto kContext = at(Stream::cp);

// The list without its weight-gradient GEMMs, so that what they hid is exposed. Adds their time to `weight`.
Picoseconds without_weight_gradients(std::span<const Op> ops, Picoseconds& weight) {
  Picoseconds total = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == OpName::weight_gradient) {
      weight += ops[i].duration;
    } else if (ops[i].over > 0) {
      const Picoseconds under = without_weight_gradients(ops.subspan(i + 1, ops[i].over), weight);
      total += std::max(ops[i].duration, under);
      i += ops[i].over;
    } else if (ops[i].with_next && ops[i + 1].name != OpName::weight_gradient) {
      total += std::max(ops[i].duration, ops[i + 1].duration);
      ++i;
    } else {
      total += ops[i].duration;
    }
  }
  return total;
}

// Time of the marked ops, without what runs concurrently with the op before.
RunTime marked(std::span<const Op> ops, bool Op::*mark) {
  RunTime sum;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!(ops[i].*mark)) continue;
    std::size_t count = 1;
    while (i + count < ops.size() && ops[i + count].*mark) ++count;
    sum += run_time(ops.subspan(i, count));
    i += count;
  }
  return sum;
}

template <class TimeOf>
ExchangeSplit split_at_exchanges(std::span<const Op> ops, const TimeOf& time_of) {
  ExchangeSplit split;
  std::size_t found = 0, begin = 0;
  for (std::size_t i = 0; i < ops.size() && found < kMostExchanges; ++i) {
    if (ops[i].name != OpName::ep_all_to_all) continue;
    split.lead[found] = time_of(ops.subspan(begin, i - begin));
    const std::span<const Op> under = ops.subspan(i + 1, ops[i].over);
    split.under[found] = time_of(under);
    if (!under.empty() && under.front().name == OpName::taken_sms)
      split.taken[found] = under.front().duration;
    split.duration[found++] = ops[i].duration;
    begin = i + 1 + ops[i].over;
  }
  return split;
}

// `lead` is local work of the run before the list.
void add_exchanges(LayerTimeline& timeline, std::size_t run, std::size_t count,
                   std::span<const ExchangeSplit> of_ranks, std::span<const Picoseconds> lead) {
  for (std::size_t e = 0; e < count; ++e) {
    LayerTimeline::Exchange& exchange = timeline.exchanges.emplace_back();
    exchange.run = run;
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      exchange.lead.push_back(of_ranks[r].lead[e] + (e == 0 && !lead.empty() ? lead[r] : 0));
      exchange.duration.push_back(of_ranks[r].duration[e]);
      exchange.under.push_back(of_ranks[r].under[e]);
      exchange.taken.push_back(of_ranks[r].taken[e]);
    }
  }
}

// What precedes the first exchange or product of experts, whose sizes the host has to know.
Issued until_routed(const HostOptions& host, std::span<const Op> ops) {
  const auto sized = std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.arrived; });
  const std::span<const Op> known(ops.begin(), sized);
  return launches_of(host, known, false).keeping(run_time(known).total);
}

}  // namespace

const LocalWork& MicroBatchCoster::local_work(LayerKind kind, const Held& held,
                                              const ExpertArrivals& of_rank) {
  const std::int64_t tokens = held.tokens;
  const ExpertArrivals arriving = is_moe(kind) ? of_rank : ExpertArrivals{};
  const std::size_t slots = memo_[at(kind)].size();
  LocalWork& slot = memo_[at(kind)][is_moe(kind) ? memo_slot(tokens, arriving, slots)
                                                 : static_cast<std::size_t>(tokens) % slots];
  if (slot.held == held && slot.arriving == arriving) return slot;
  slot = LocalWork{};  // matches no number of tokens until it is complete, because prices may throw
  costs_.layers.forward(kind, tokens, arriving, before_, after_, slot.use, held.documents);
  slot.forward_before = run_time(before_.ops());
  slot.forward_after = run_time(after_.ops());
  slot.once_before = marked(before_.ops(), &Op::once);
  slot.once_after = marked(after_.ops(), &Op::once);
  slot.before_launches = launches_of(costs_.host(), before_.ops(), false);
  slot.behind_lengths = behind_lengths(costs_.host(), before_.ops());
  slot.forward_launches = slot.before_launches + launches_of(costs_.host(), after_.ops(), false);
  if (is_moe(kind) && costs_.host().waits_for_routes)
    slot.until_routed = until_routed(costs_.host(), after_.ops());
  const auto total = [](std::span<const Op> ops) { return run_time(ops).total; };
  slot.forward_exchanges = split_at_exchanges(after_.ops(), total);
  costs_.layers.backward(kind, tokens, arriving, before_, after_, slot.use, held.documents);
  slot.backward_before = run_time(before_.ops());
  slot.backward_after = run_time(after_.ops());
  slot.backward_launches =
      launches_of(costs_.host(), before_.ops(), true) + launches_of(costs_.host(), after_.ops(), true);
  for (const OpList* list : {&before_, &after_}) slot.recomputed += marked(list->ops(), &Op::again).total;
  slot.backward_exchanges = split_at_exchanges(before_.ops(), total);
  slot.input_exchanges = split_at_exchanges(before_.ops(), [](std::span<const Op> ops) {
    Picoseconds weight = 0;
    return without_weight_gradients(ops, weight);
  });
  slot.input_before = without_weight_gradients(before_.ops(), slot.weight);
  slot.input_after = without_weight_gradients(after_.ops(), slot.weight);
  slot.held = held;
  slot.arriving = arriving;
  return slot;
}

LayerWork MicroBatchCoster::layer_work(LayerKind kind, std::size_t rank, const MicroBatchCost& out) {
  const HeldByHalf& held = held_[rank];
  LayerWork work;
  if (!halves_) {
    const LocalWork& all = local_work(kind, held[0], out.arriving[rank]);
    work.all = &all;
    work.forward = {all.forward_before.total, 0, 0, all.forward_after.total};
    work.backward = {all.backward_before.total, 0, 0, all.backward_after.total};
    work.input = {all.input_before, 0, 0, all.input_after};
    return work;
  }
  both_ = local_work(kind, held[0], {});
  const LocalWork& second = local_work(kind, held[1], {});
  work.forward = {both_.forward_before.total, second.forward_before.total, both_.forward_after.total,
                  second.forward_after.total};
  work.backward = {second.backward_before.total, both_.backward_before.total, second.backward_after.total,
                   both_.backward_after.total};
  work.input = {second.input_before, both_.input_before, second.input_after, both_.input_after};
  both_ += second;
  both_.once_before = both_.once_after = {};  // halves are repeated whole
  work.all = &both_;
  return work;
}

void MicroBatchCoster::build_layer(LayerKind kind, MicroBatchCost& out) {
  const std::size_t k = at(kind);
  const int ranks = out.ranks;
  const auto c = at(ranks);
  const bool selective = repeats_mixer(costs_.layout(), mixer_of(kind));
  LayerTimeline& forward = out.forward[k];
  LayerTimeline& backward = out.backward[k];
  LayerTimeline& input = out.input_gradient[k];
  const std::vector<Picoseconds>& attended = out.attention_forward[at(mixer_of(kind))];
  out.recomputed[k] = 0;

  const auto add_run = [&](const ContextPass& pass, LayerTimeline& timeline, std::size_t run) {
    for (std::size_t r = 0; r < c; ++r) timeline.add_local(static_cast<int>(r), pass.run[run * c + r]);
  };
  // Adds an exchange, with the run after it.
  const auto add_exchanged = [&](std::span<const Op> exchanges, const ContextPass& pass,
                                 LayerTimeline& timeline) {
    for (std::size_t e = 0; e < exchanges.size(); ++e) {
      timeline.add_sync(exchanges[e].duration);
      for (std::size_t r = 0; r < c; ++r) timeline.overlap_last(static_cast<int>(r), pass.under[e * c + r]);
      add_run(pass, timeline, e + 1);
    }
  };
  works_.clear();
  for (int r = 0; r < ranks; ++r) {
    works_.push_back(layer_work(kind, at(r), out));
    const LocalWork& work = *works_.back().all;
    out.use.add(work.use, costs_.layer_counts()[k]);
    out.recomputed[k] = std::max(out.recomputed[k], work.recomputed + (selective ? attended[at(r)] : 0));
  }
  const auto add_pass = [&](std::span<const Op> exchanges, PassWork LayerWork::*own, ContextPass& pass,
                            LayerTimeline& timeline) {
    for (std::size_t r = 0; r < c; ++r) {
      const PassWork& work = works_[r].*own;
      timeline.add_local(static_cast<int>(r), work.before);
      if (!halves_) continue;
      pass.under[r] = work.under_first;
      pass.under[(exchanges.size() - 1) * c + r] = work.under_last;
    }
    add_run(pass, timeline, 0);
    add_exchanged(exchanges, pass, timeline);
  };
  add_pass(exchanges_.forward, &LayerWork::forward, passes_.forward, forward);
  add_pass(exchanges_.backward, &LayerWork::input, passes_.backward, input);
  add_pass(exchanges_.backward, &LayerWork::backward, passes_.backward, backward);
  if (is_moe(kind) && costs_.layout().expert > 1) add_layer_exchanges(kind, out);
  finish_layer(kind, out);
  out.full[k] = out.again[k];
  out.full[k].append(backward);
  for (LayerTimeline* timeline : {&forward, &out.again[k], &backward, &input, &out.full[k]})
    timeline->sum_up();
}

// Forward exchanges follow the attention, backward ones precede it. Must be called before the work after the
// last synchronisation is added, from which the forward's leads count.
void MicroBatchCoster::add_layer_exchanges(LayerKind kind, MicroBatchCost& out) {
  const std::size_t k = at(kind);
  const auto c = at(out.ranks);
  LayerTimeline& forward = out.forward[k];
  std::vector<ExchangeSplit> in_forward, in_backward, in_input;
  for (int r = 0; r < out.ranks; ++r) {
    const LocalWork& work = local_work(kind, held_[at(r)][0], out.arriving[at(r)]);
    in_forward.push_back(work.forward_exchanges);
    in_backward.push_back(work.backward_exchanges);
    in_input.push_back(work.input_exchanges);
  }
  const std::span<const Picoseconds> last_run(forward.local.data() + forward.syncs() * c, c);
  add_exchanges(forward, forward.syncs(), costs_.experts.exchanges(false), in_forward, last_run);
  add_exchanges(out.backward[k], 0, costs_.experts.exchanges(true), in_backward, {});
  add_exchanges(out.input_gradient[k], 0, costs_.experts.exchanges(true), in_input, {});
}

// Adds what follows each rank's last synchronisation, with stalls for the host, and counts the work.
void MicroBatchCoster::finish_layer(LayerKind kind, MicroBatchCost& out) {
  const std::size_t k = at(kind);
  const auto c = at(out.ranks);
  const std::int64_t calls = repeats_mixer(costs_.layout(), mixer_of(kind)) ? 2 : 1;  // backward
  const HostOptions& host = costs_.host();
  const int halves = costs_.layout().nano_batches_of(out.ranks);  // with attention of their own
  out.again[k] = out.forward[k];                                  // what follows belongs to the last run
  const int others = mixer_of(kind) == Mixer::parallel ? 1 : 0;   // recurrences next to attention
  const Issued first_launches =
      (halves + others) * attention_launches(host, false, 1) + launches_of(host, exchanges_.forward, false);
  const Issued last_launches = halves * attention_launches(host, true, calls) +
                               others * attention_launches(host, true, 1) +
                               launches_of(host, exchanges_.backward, true);
  for (std::size_t r = 0; r < c; ++r) {
    const LayerWork of_layer = layer_work(kind, r, out);
    const LocalWork& work = *of_layer.all;
    // Counts a pass, and returns what the host issues for it and how long the rank takes. Only what attention
    // does not cover of an exchange counts in either: a faster network must not cost the host its lead.
    const auto finish = [&](const RunTime& before, const RunTime& after, Issued launches,
                            const ContextPass& pass, std::span<const Op> exchanges,
                            std::vector<Picoseconds>& compute, std::array<Picoseconds, kStreams>& exposed) {
      Picoseconds spent = before.total + after.total + pass.busy[r];
      compute[r] = before.busy[kCompute] + after.busy[kCompute] + pass.busy[r];
      for (std::size_t s = 0; s < kStreams; ++s) exposed[s] += before.exposed[s] + after.exposed[s];
      for (std::size_t e = 0; e < exchanges.size(); ++e) {
        const Picoseconds alone = std::max<Picoseconds>(0, exchanges[e].duration - pass.under[e * c + r]);
        exposed[kContext] += alone;
        spent += alone;
      }
      return std::pair(work.held.tokens == 0 ? Issued{} : launches.keeping(spent), spent);
    };
    const auto [forward, forward_spent] =
        finish(work.forward_before, work.forward_after, work.forward_launches + first_launches,
               passes_.forward, exchanges_.forward, out.compute_forward[k], out.exposed_forward[k]);
    const auto [backward, backward_spent] =
        finish(work.backward_before, work.backward_after, work.backward_launches + last_launches,
               passes_.backward, exchanges_.backward, out.compute_backward[k], out.exposed_backward[k]);
    const auto stalled = [&, tokens = work.held.tokens](Picoseconds for_host, Picoseconds spent) {
      return for_host + costs_.stalls.for_copies(kind, tokens, spent + for_host);
    };
    const Picoseconds of_backward = costs_.stalls.for_host(kind, backward, forward - work.behind_lengths);
    const Picoseconds forward_stall = stalled(forward_stall_of(kind, work, forward, backward), forward_spent);
    const int rank = static_cast<int>(r);
    out.forward[k].add_local(rank, of_layer.forward.after + forward_stall);
    out.backward[k].add_local(rank, of_layer.backward.after + stalled(of_backward, backward_spent));
    out.input_gradient[k].add_local(
        rank, of_layer.input.after + stalled(of_backward, backward_spent - work.weight));
    out.weight_gradient[k][r] = work.weight;
    // A forward that is repeated, without the marked ops.
    RunTime once = work.once_before;
    once += work.once_after;
    out.again[k].local[r] -= work.once_before.total;
    out.again[k].add_local(rank, of_layer.forward.after + forward_stall - work.once_after.total);
    out.compute_again[k][r] = out.compute_forward[k][r] - once.busy[kCompute];
    for (std::size_t s = 0; s < kStreams; ++s) out.exposed_again[k][s] -= once.exposed[s];
  }
  for (std::size_t s = 0; s < kStreams; ++s) out.exposed_again[k][s] += out.exposed_forward[k][s];
  for (auto* exposed : {&out.exposed_forward[k], &out.exposed_again[k], &out.exposed_backward[k]})
    for (Picoseconds& of_stream : *exposed) of_stream /= out.ranks;
}

// If the host waits for documents' lengths or the router's counts, the parts before and after stall
// separately.
Picoseconds MicroBatchCoster::forward_stall_of(LayerKind kind, const LocalWork& work, Issued forward,
                                               Issued backward) const {
  Picoseconds stall = 0;
  Issued before = backward;
  int sharers = forwards_;
  if (work.behind_lengths.launches > 0) {
    stall = costs_.stalls.for_host(kind, work.behind_lengths, {});
    before = work.behind_lengths;
    sharers = 1;
    forward = forward - before;
  }
  if (work.until_routed.launches == 0) return stall + costs_.stalls.for_host(kind, forward, before, sharers);
  const Issued behind =
      (work.forward_launches - work.before_launches).keeping(work.forward_after.total) - work.until_routed;
  return stall + costs_.stalls.for_host(kind, forward - behind, {}) +
         costs_.stalls.for_host(kind, behind, {});
}

const EndWork& MicroBatchCoster::end_work(std::int64_t tokens) {
  EndWork& slot = end_memo_[at(tokens) % end_memo_.size()];
  if (slot.tokens == tokens) return slot;
  slot = EndWork{};  // matches no number of tokens until it is complete, because prices may throw
  costs_.ends.embedding(tokens, false, before_, slot.use);
  slot.times[0] = run_time(before_.ops());
  costs_.ends.embedding(tokens, true, before_, slot.use);
  slot.times[1] = run_time(before_.ops());
  costs_.ends.head_forward(tokens, before_, slot.use);
  slot.times[2] = run_time(before_.ops());
  costs_.ends.head_backward(tokens, before_, slot.use);
  slot.times[3] = run_time(before_.ops());
  if (const int stages = costs_.layout().pipeline; stages > 1 && tokens > 0) {
    slot.hop = costs_.kernels.pipeline_send(tokens, 0, 1, slot.use).duration;
    slot.wrap = costs_.kernels.pipeline_send(tokens, stages - 1, 0, slot.use).duration;
  }
  slot.tokens = tokens;
  return slot;
}

void MicroBatchCoster::build_ends(MicroBatchCost& out) {
  const auto c = at(out.ranks);
  const std::array<EndCost*, 4> ends = {&out.embed_forward, &out.embed_backward, &out.head_forward,
                                        &out.head_backward};
  for (EndCost* end : ends) {
    end->total.assign(c, 0);
    end->compute.assign(c, 0);
    end->exposed.fill(0);
  }
  for (auto* send : {&out.send_next, &out.send_previous, &out.send_wrap}) send->assign(c, 0);
  for (std::size_t r = 0; r < c; ++r) {
    const std::int64_t tokens = out.sharding.rank_tokens[r];
    const EndWork& work = end_work(tokens);
    // Most ranks hold the same number of tokens, so their prediction is made once.
    if (r == 0 || tokens != out.sharding.rank_tokens[r - 1]) {
      std::size_t end = r;
      while (end < c && out.sharding.rank_tokens[end] == tokens) ++end;
      out.use.add(work.use, static_cast<double>(end - r));
    }
    for (std::size_t e = 0; e < ends.size(); ++e) {
      ends[e]->total[r] = work.times[e].total;
      ends[e]->compute[r] = work.times[e].busy[kCompute];
      for (std::size_t s = 0; s < kStreams; ++s) ends[e]->exposed[s] += work.times[e].exposed[s];
    }
    out.send_next[r] = out.send_previous[r] = work.hop;
    out.send_wrap[r] = work.wrap;
  }
  for (EndCost* end : ends)
    for (Picoseconds& exposed : end->exposed) exposed /= out.ranks;
}

}  // namespace equipoise
