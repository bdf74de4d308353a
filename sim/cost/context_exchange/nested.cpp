// All-to-all inside, ring or all-gather across: USP (arXiv 2405.07719), 2D-Attention of LoongTrain (arXiv
// 2406.18485), a2a+p2p of Transformer Engine.
//
// A CP group of c ranks is a table of c / inner outer ranks by `inner` ranks. An all-to-all among the ranks
// of an inner group gives each of them all the group's tokens and its share of the heads, as in Ulysses.
// Ranks of equal number in all inner groups then form a ring, or gather, for these heads. A second all-to-all
// brings the output back. Rank r is number r modulo `inner` of inner group r / inner, so that under the
// zig-zag over 2c chunks an inner group holds two runs of chunks: those of a zig-zag over its c / inner outer
// ranks, as USP cuts a sequence.
//
// All c ranks meet at every exchange. Those of an inner all-to-all alone would meet there first and the
// others at the next ring step or gather, and end no earlier.
//
// A CP group of another degree than the layout's has inner groups of the greatest common divisor.
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

int inner_of(const LayerCosts& costs, int context) {
  return costs.layout().inner_ranks(context);
}

ContextGroup inner_group(const LayerCosts& costs, int context) {
  return context_group(costs, inner_of(costs, context));
}

// Heads are shared before K and V travel, so a rank sends only the heads of its share, at least one.
ContextGroup outer_group(const LayerCosts& costs, int context) {
  const int inner = inner_of(costs, context);
  const int tensor = costs.layout().tensor;
  const ModelShape& model = costs.model();
  const double kv_heads = model.mla ? model.heads / tensor : std::max(1, model.kv_heads / tensor);
  ContextGroup group{context / inner, costs.grid().outer_shape(context), 0};
  group.kv_bytes_per_token =
      as_double(costs.kv_bytes_per_token()) * (std::max(kv_heads, 1.0 * inner) / (kv_heads * inner));
  return group;
}

// The plain form that a nested form equals at that CP degree, if any.
const ContextForm* plain_form(const LayerCosts& costs, const ContextForm& across, int context) {
  const int inner = inner_of(costs, context);
  return inner == 1 ? &across : inner == context ? &kUlyssesForm : nullptr;
}

template <const ContextForm& kAcross>
void exchange_nested(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                     ContextExchanges& out, RangeUse& use) {
  if (const ContextForm* plain = plain_form(costs, kAcross, group.ranks))
    return plain->exchange(costs, tokens, group, out, use);
  out.clear();
  if (tokens.distributed + tokens.earlier == 0) return;
  thread_local ContextExchanges heads;
  kUlyssesForm.exchange(costs, tokens, inner_group(costs, group.ranks), heads, use);
  ExchangedTokens across = tokens;
  across.fullest = tokens.fullest_inner;
  kAcross.exchange(costs, across, outer_group(costs, group.ranks), out, use);
  for (auto pass : {&ContextExchanges::forward, &ContextExchanges::backward}) {
    (out.*pass).insert((out.*pass).begin(), (heads.*pass).front());
    (out.*pass).push_back((heads.*pass).back());
  }
}

// Extends the passes of the outer ranks to all ranks, between two all-to-alls during which nobody attends.
void spread(const ContextPass& across, int inner, ContextPass& out) {
  const auto outer = at(across.ranks);
  const std::size_t exchanges = across.under.size() / outer;
  out.reset(across.ranks * inner, exchanges + 2);
  for (std::size_t r = 0; r < at(out.ranks); ++r) {
    const std::size_t of = r / at(inner);
    for (std::size_t e = 0; e <= exchanges; ++e) out.add_run(e + 1, r, across.run[e * outer + of]);
    for (std::size_t e = 0; e < exchanges; ++e) out.add_under(e + 1, r, across.under[e * outer + of]);
  }
}

template <const ContextForm& kAcross>
void attend_nested(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  if (const ContextForm* plain = plain_form(of.costs, kAcross, of.context))
    return plain->attend(of, out, use);
  const int inner = inner_of(of.costs, of.context);
  thread_local ContextPasses passes;
  const ContextCase across{of.costs,  of.attention,       of.micro_batch, *of.merged,
                           of.tokens, of.context / inner, of.window,      inner};
  RangeUse of_outer;  // the ranks of an inner group make the same calls
  kAcross.attend(across, passes, of_outer);
  use.add(of_outer, inner);
  spread(passes.forward, inner, out.forward);
  spread(passes.backward, inner, out.backward);
}

template <const ContextForm& kAcross>
double least_nested(const LayerCosts& costs, const ContextGroup& group) {
  if (const ContextForm* plain = plain_form(costs, kAcross, group.ranks))
    return plain->least_seconds(costs, group);
  const ContextGroup across = outer_group(costs, group.ranks);
  return kUlyssesForm.least_seconds(costs, inner_group(costs, group.ranks)) / across.ranks +
         kAcross.least_seconds(costs, across);
}

int inner_ranks(const Layout& layout, int degree) {
  return layout.inner_ranks(degree);
}

}  // namespace

constinit const ContextForm kUlyssesRingForm = {
    .head_shares = inner_ranks,
    .held_tokens = [](std::int64_t rank_tokens, std::int64_t, int) { return 2 * rank_tokens; },
    .exchange = exchange_nested<kRingForm>,
    .attend = attend_nested<kRingForm>,
    .least_seconds = least_nested<kRingForm>,
};

constinit const ContextForm kUlyssesAllGatherForm = {
    .counts_in_workload = true,
    .head_shares = inner_ranks,
    .held_tokens = [](std::int64_t, std::int64_t group_tokens,
                      int inner) { return (group_tokens + inner - 1) / inner; },
    .exchange = exchange_nested<kAllGatherForm>,
    .attend = attend_nested<kAllGatherForm>,
    .least_seconds = least_nested<kAllGatherForm>,
};

}  // namespace equipoise
