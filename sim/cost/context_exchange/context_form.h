// How the ranks of a context-parallel (CP) group attend to keys that lie on other ranks: the forms.
//
// A form says what a layer's passes exchange, what that costs, what a rank holds meanwhile and what it
// computes meanwhile. Each form is one file of this folder, one row of the table at the end of this
// header, and one row of facts in sim/workload/context_comm.h; whoever wants to know what a form does asks
// its rows.
//   all-gather  K and V of all tokens before the attention, in the backward once more, and the gradients of K
//               and V are reduce-scattered after it
//   ring        attention to the K and V of one rank after the other, while the next ones arrive
//   ulysses     all-to-all before and after the attention, in which each rank has all tokens, but only its
//               share of the heads
//   nested      the all-to-all of ulysses inside groups of ranks, and a ring or an all-gather of what a group
//               then holds across them
//   group-cast  only the blocks of K and V that some query of the receiver sees, during the attention to the
//               rank's own keys; their gradients go the way back
//   disaggregated  Q, K and V to whichever rank computes, and its output home
//   (policies/sharding/disaggregation.h)
//
// Example, 4 ranks of 2,048 tokens each, forward: all-gather has one exchange of 8,192 tokens' K and V, and
// then the attention; ring has three of 2,048 tokens', each during the attention to the block before; Ulysses
// has one of the rank's Q, K and V, the attention of a quarter of the heads, and one of its output.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/context_exchange/disaggregated.h"
#include "sim/cost/context_exchange/group_cast.h"
#include "sim/cost/layer_costs.h"
#include "sim/cost/policy_costs.h"
#include "sim/workload/layout.h"
#include "sim/workload/ops.h"

namespace equipoise {

// Tokens of earlier chunks to which a dependent chunk's attention reaches back.
inline std::int64_t earlier_tokens(const MicroBatch& micro_batch, std::int64_t window) {
  if (micro_batch.chunk.count <= 1 || micro_batch.slices.empty()) return 0;
  const std::int64_t all = micro_batch.slices.front().begin - micro_batch.chunk.group_begin;
  return window > 0 ? std::min(all, window - 1) : all;
}

// Tokens whose K and V the ranks of a group need from each other in one layer.
struct ExchangedTokens {
  std::int64_t distributed = 0;    // of the micro-batch, without slices that one rank holds whole
  std::int64_t placed = 0;         // of such slices, which stay where they are
  std::int64_t earlier = 0;        // of earlier chunks; every rank holds its share
  std::int64_t fullest = 0;        // of the micro-batch, on the rank with the most
  std::int64_t fullest_inner = 0;  // on the inner group with the most
  std::int64_t key_runs = 0;       // most runs of consecutive keys that a rank's queries see
  CastTokens cast{};               // if the layout's form is group-cast
  const PlannedTasks* tasks = nullptr;  // for disaggregated; valid until this thread asks again
  // Tokens held as if they were K and V, on the rank with the most; 0 if the plan does not decide it.
  [[nodiscard]] std::int64_t held() const { return std::max(cast.held, tasks != nullptr ? tasks->held : 0); }
};
// A sharded micro-batch whose tokens are counted. `costs` is null if planned tasks are not needed.
struct TokensCase {
  const MicroBatch& micro_batch;
  const Sharding& sharding;
  std::int64_t window = 0;
  const Layout& layout;
  int node_ranks = 0;
  const LayerCosts* costs = nullptr;
};
ExchangedTokens exchanged_tokens(const TokensCase& of);
inline ExchangedTokens exchanged_tokens(const MicroBatch& micro_batch, const Sharding& sharding,
                                        std::int64_t window, const Layout& layout, int node_ranks = 0) {
  return exchanged_tokens({micro_batch, sharding, window, layout, node_ranks});
}
// A whole CP group of that degree, or the pool that it belongs to.
ContextGroup context_group(const LayerCosts& costs, int context, const StagePool* pool = nullptr);
// Includes planned tasks, those of the pool if there is one, and CastTokens::node_ranks. For a recurrence,
// whose exchange depends on sums over ranks alone, only these are computed.
ExchangedTokens exchanged_tokens(const MicroBatch& micro_batch, const Sharding& sharding, Mixer mixer,
                                 const LayerCosts& costs, const StagePool* pool);

// The exchanges of one layer, in order. All ranks of the group take part and wait for each other.
struct ContextExchanges {
  std::vector<Op> forward, backward;

  void clear() {
    forward.clear();
    backward.clear();
  }
};

// The attention of one pass of a layer, cut by its exchanges: one run before the first, and one after each.
struct ContextPass {
  int ranks = 0;
  std::vector<Picoseconds> run;    // (exchanges + 1) x ranks
  std::vector<Picoseconds> under;  // exchanges x ranks: during the exchange
  std::vector<Picoseconds> busy;   // by rank, in all runs

  void reset(int rank_count, std::size_t exchanges) {
    ranks = rank_count;
    run.assign((exchanges + 1) * at(ranks), 0);
    under.assign(exchanges * at(ranks), 0);
    busy.assign(at(ranks), 0);
  }
  void add_run(std::size_t number, std::size_t rank, Picoseconds time) {
    run[number * at(ranks) + rank] += time;
    busy[rank] += time;
  }
  void add_under(std::size_t exchange, std::size_t rank, Picoseconds time) {
    under[exchange * at(ranks) + rank] += time;
    busy[rank] += time;
  }
  // Adds a pass of the same ranks that follows: its first run continues the last one.
  void append(const ContextPass& next) {
    for (std::size_t r = 0; r < at(ranks); ++r) {
      run[run.size() - at(ranks) + r] += next.run[r];
      busy[r] += next.busy[r];
    }
    run.insert(run.end(), next.run.begin() + ranks, next.run.end());
    under.insert(under.end(), next.under.begin(), next.under.end());
  }
};

// Both passes; the backward begins with the forward that selective recompute repeats.
struct ContextPasses {
  ContextPass forward, backward;
};

// Moves a rank's part of the tick's attention under the exchange, in place of its own attention.
void take_evened(const EvenedAttention& evened, ContextPasses& passes, ContextExchanges& exchanges);

// A sharded micro-batch whose attention in one layer is priced.
struct ContextCase {
  const LayerCosts& costs;
  const ProfiledAttentionCost& attention;
  const MicroBatch& micro_batch;
  const Sharding& sharding;
  ExchangedTokens tokens;
  int context = 1;
  std::int64_t window = 0;
  int head_shares = 1;  // ranks that share the heads of each call
  // The sharding where ranks that share heads are one (merge_inner_ranks); null if none do.
  const Sharding* merged = nullptr;

  [[nodiscard]] Picoseconds backward(AttentionTimes times) const {
    return times.backward + (costs.layout().repeats(RecomputeModule::core_attn) ? times.forward : 0);
  }
};

struct ContextForm {
  // Whether the work of a token, by which packers balance documents, includes the exchanges.
  bool counts_in_workload = false;
  // Ranks that share the heads of attention in a group of that degree; with 1 each has all heads.
  int (*head_shares)(const Layout& layout, int degree) = [](const Layout&, int) { return 1; };
  // K and V that a rank holds at once, in tokens of all heads. The rank has `rank_tokens` of its group's
  // `group_tokens`, and an inner group of a nested form has `inner` ranks. What a group-cast receives depends
  // on the sharding, so this is an upper bound.
  std::int64_t (*held_tokens)(std::int64_t rank_tokens, std::int64_t group_tokens, int inner);
  // Throws UserError if a sharded micro-batch cannot run in this form. `halves` means in two nano-batches.
  void (*check)(const MicroBatch& micro_batch, const Sharding& sharding, bool halves,
                const LayerCosts& costs) = [](const MicroBatch&, const Sharding&, bool, const LayerCosts&) {};
  // Counts what `exchange` needs besides the sums over ranks.
  void (*count)(const TokensCase& of, ExchangedTokens& tokens) = [](const TokensCase&, ExchangedTokens&) {};
  // Writes the exchanges of a layer with bytes and durations; none if nothing is exchanged.
  void (*exchange)(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                   ContextExchanges& out, RangeUse& use);
  // Writes the attention between and during these exchanges.
  void (*attend)(const ContextCase& of, ContextPasses& out, RangeUse& use);
  // A lower bound over all plans: seconds of a layer's exchanges, forward and backward, per token of a
  // micro-batch. 0 if nothing has to travel.
  double (*least_seconds)(const LayerCosts& costs, const ContextGroup& group) =
      [](const LayerCosts&, const ContextGroup&) { return 0.0; };
};

// What a layer's linear recurrence exchanges and computes, whatever form its model's attention has.
extern const ContextForm kRecurrenceForm;
// The forms, each in its file, and the table: in the order of ContextComm.
extern const ContextForm kAllGatherForm, kRingForm, kUlyssesForm, kUlyssesRingForm, kUlyssesAllGatherForm,
    kGroupCastForm, kDisaggregatedForm;
inline constexpr const ContextForm* kContextForms[] = {
    &kAllGatherForm,        &kRingForm,      &kUlyssesForm,      &kUlyssesRingForm,
    &kUlyssesAllGatherForm, &kGroupCastForm, &kDisaggregatedForm};
static_assert(std::size(kContextForms) == std::size(kContextCommNames));

inline const ContextForm& context_form(const Layout& layout) {
  return *kContextForms[at(layout.acting_form())];
}
inline const ContextForm& context_form(const LayerCosts& costs) {
  return context_form(costs.layout());
}
// Whether a backward of a layer begins with its mixer's forward: selective recompute repeats attention alone.
inline bool repeats_mixer(const Layout& layout, Mixer mixer) {
  return attends(mixer) && layout.repeats(RecomputeModule::core_attn);
}

// An all-to-all with messages of any size, priced as one in which every rank sends or receives so many bytes.
Op uneven_all_to_all(const LayerCosts& costs, double bytes, const ContextGroup& group, RangeUse& use);
// The number of ranks that can share a TP rank's heads, as an error names it ("a divisor of the 4 heads of a
// TP rank's linear recurrences"), or "" if `degree` ranks can. Heads of attention are shared in some forms,
// those of a recurrence in all.
std::string ranks_of_heads(const ModelShape& model, const Layout& layout, int degree);
inline bool heads_suit(const ModelShape& model, const Layout& layout, int degree) {
  return ranks_of_heads(model, layout, degree).empty();
}

// Adds what a layer exchanges in the form to what it exchanges before. A layer with two mixers has attention
// first.
void add_exchanges(const ContextForm& form, const LayerCosts& costs, const ExchangedTokens& tokens,
                   const ContextGroup& group, ContextExchanges& out, RangeUse& use);
Picoseconds exchange_time(const ContextForm& form, const LayerCosts& costs, const ExchangedTokens& tokens,
                          int context, RangeUse& use);
// ContextForm::least_seconds of the layout's form; 0 on one rank.
double least_exchange_seconds(const LayerCosts& costs, int context);

// The packer's placements, or those that the sharding rule chose (dacp).
inline const std::vector<int>& placement_of(const MicroBatch& micro_batch, const Sharding& sharding) {
  return sharding.placement.empty() ? micro_batch.placement : sharding.placement;
}
inline bool is_placed(const std::vector<int>& placement, const Segment& segment) {
  return !placement.empty() && placement[at(segment.slice)] != kDistributed;
}

// A rank's attention to its own queries with all heads: for slices that it holds whole, which wait for no
// exchange, and for the others.
struct RankAttention {
  AttentionTimes placed, distributed;
};
RankAttention rank_attention(const ContextCase& of, int rank, RangeUse& use);
// The attention of a layer without exchanges.
void attend_alone(const ContextCase& of, ContextPasses& out, RangeUse& use);

// Tokens whose K and V all ranks of a group receive together, and those that a query of the receiver sees.
struct ReceivedTokens {
  double sent = 0, useful = 0;
};
ReceivedTokens received_tokens(const ContextCase& of);

// Where each of `inner` ranks that share out the heads has the tokens of all of them: their sharding, an
// inner group as one rank with the segments of its ranks; what touches is one segment, as it is one kernel
// call.
void merge_inner_ranks(const Sharding& sharding, int inner, Sharding& out);

}  // namespace equipoise
