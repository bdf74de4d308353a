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

// Tokens of earlier chunks that a dependent chunk's attention reaches back to.
inline std::int64_t earlier_tokens(const MicroBatch& micro_batch, std::int64_t window) {
  if (micro_batch.chunk.count <= 1 || micro_batch.slices.empty()) return 0;
  const std::int64_t all = micro_batch.slices.front().begin - micro_batch.chunk.group_begin;
  return window > 0 ? std::min(all, window - 1) : all;
}

// Tokens whose K and V the ranks of a group need of each other in one layer.
struct ExchangedTokens {
  std::int64_t distributed = 0;    // of the micro-batch, but for those of slices that one rank holds whole
  std::int64_t placed = 0;         // those of such slices, which stay where they are
  std::int64_t earlier = 0;        // of earlier chunks, of which every rank holds its share
  std::int64_t fullest = 0;        // of the micro-batch, on the rank with the most
  std::int64_t fullest_inner = 0;  // on the inner group with the most
  std::int64_t key_runs = 0;       // most runs of consecutive keys that a rank's queries see
  CastTokens cast{};               // where the layout's form is group-cast
  const PlannedTasks* tasks = nullptr;  // disaggregated; good until this thread asks again
  // Tokens held as if they were K and V, on the rank with the most; 0 where the plan does not decide it.
  [[nodiscard]] std::int64_t held() const { return std::max(cast.held, tasks != nullptr ? tasks->held : 0); }
};
// A sharded micro-batch whose tokens are counted. `costs`: null where nobody asks for planned tasks.
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
// A whole CP group of that degree, or the pool that it is in.
ContextGroup context_group(const LayerCosts& costs, int context, const StagePool* pool = nullptr);
// With planned tasks, too, those of the pool if there is one, and CastTokens::node_ranks as the group lies.
ExchangedTokens exchanged_tokens(const MicroBatch& micro_batch, const Sharding& sharding, std::int64_t window,
                                 const LayerCosts& costs, const StagePool* pool);

// The exchanges of one layer, in order. All ranks of the group take part, and wait for each other.
struct ContextExchanges {
  std::vector<Op> forward, backward;

  void clear() {
    forward.clear();
    backward.clear();
  }
};

// The attention of one pass of a layer, cut by its exchanges: a run before the first, and one behind each.
struct ContextPass {
  int ranks = 0;
  std::vector<Picoseconds> run;    // (exchanges + 1) x ranks
  std::vector<Picoseconds> under;  // exchanges x ranks: during the exchange
  std::vector<Picoseconds> busy;   // by rank: all of it

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
};

// Both passes; the backward begins with the forward that selective recompute repeats.
struct ContextPasses {
  ContextPass forward, backward;
};

// A rank's own attention becomes its part of the tick's, and runs during the exchange.
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
  int head_shares = 1;  // ranks that share out the heads of each call

  [[nodiscard]] Picoseconds backward(AttentionTimes times) const {
    return times.backward + (costs.layout().repeats(RecomputeModule::core_attn) ? times.forward : 0);
  }
};

struct ContextForm {
  // The work of a token, by which packers balance documents, counts the exchanges.
  bool counts_in_workload = false;
  // Ranks that share out the heads of the attention in a group of that degree; 1: each attends with all.
  int (*head_shares)(const Layout& layout, int degree) = [](const Layout&, int) { return 1; };
  // Exchanges of a pass, for estimates of what a simulation allocates; a backward may have one more.
  int (*estimated_exchanges)(const Layout& layout, int context);
  // What a rank holds at once of K and V, in tokens of all heads. The rank has `rank_tokens` of its
  // group's `group_tokens`; an inner group of a nested form has `inner` ranks.
  // What a group-cast receives depends on the sharding: the most that can be.
  std::int64_t (*held_tokens)(std::int64_t rank_tokens, std::int64_t group_tokens, int inner);
  // Throws UserError where a sharded micro-batch cannot run in this form. `halves`: in two nano-batches.
  void (*check)(const MicroBatch& micro_batch, const Sharding& sharding, bool halves,
                const LayerCosts& costs) = [](const MicroBatch&, const Sharding&, bool, const LayerCosts&) {};
  // Counts what `exchange` needs to know apart from the sums over ranks.
  void (*count)(const TokensCase& of, ExchangedTokens& tokens) = [](const TokensCase&, ExchangedTokens&) {};
  // Writes the exchanges of a layer, with bytes and durations; none where nothing is exchanged.
  void (*exchange)(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                   ContextExchanges& out, RangeUse& use);
  // Writes the attention between and during these exchanges.
  void (*attend)(const ContextCase& of, ContextPasses& out, RangeUse& use);
  // No plan's exchanges take less: seconds of a layer, forward and backward, for each token of a micro-batch.
  // 0: nothing need travel.
  double (*least_seconds)(const LayerCosts& costs, const ContextGroup& group) =
      [](const LayerCosts&, const ContextGroup&) { return 0.0; };
};

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

// An all-to-all with messages of any size, as long as one in which every rank sends or receives so many
// bytes.
Op uneven_all_to_all(const LayerCosts& costs, double bytes, const ContextGroup& group, RangeUse& use);
// Whether a group of `degree` ranks can share out the heads of a TP rank as the layout's form does.
bool heads_suit(const Layout& layout, int heads, int degree);

// The time of a layer's exchanges, forward and backward.
Picoseconds exchange_time(const ContextForm& form, const LayerCosts& costs, const ExchangedTokens& tokens,
                          int context, RangeUse& use);
// ContextForm::least_seconds of the layout's form; 0 on one rank.
double least_exchange_seconds(const LayerCosts& costs, int context);

// The packer's placements, or those that the sharding rule decided (dacp).
inline const std::vector<int>& placement_of(const MicroBatch& micro_batch, const Sharding& sharding) {
  return sharding.placement.empty() ? micro_batch.placement : sharding.placement;
}
inline bool is_placed(const std::vector<int>& placement, const Segment& segment) {
  return !placement.empty() && placement[at(segment.slice)] != kDistributed;
}

// The attention of a rank to its own queries with all heads: of the slices that it holds whole, which wait
// for no exchange, and of the others.
struct RankAttention {
  AttentionTimes placed, distributed;
};
RankAttention rank_attention(const ContextCase& of, int rank, RangeUse& use);
// The attention of a layer without exchanges.
void attend_alone(const ContextCase& of, ContextPasses& out, RangeUse& use);

// Tokens whose K and V all ranks of a group receive together, and those of them that some query of the
// receiver sees.
struct ReceivedTokens {
  double sent = 0, useful = 0;
};
ReceivedTokens received_tokens(const ContextCase& of);

// Where each of `inner` ranks that share out the heads has the tokens of all of them: their sharding, an
// inner group as one rank with the segments of its ranks; what touches is one segment, as it is one kernel
// call.
void merge_inner_ranks(const Sharding& sharding, int inner, Sharding& out);

}  // namespace equipoise
