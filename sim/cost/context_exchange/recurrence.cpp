// A linear recurrence over the ranks of a CP group, by an all-to-all of heads as Megatron-core has it
// (ssm/mamba_context_parallel.py, and its gated delta net): each rank gets all tokens of its share of the
// heads, so that no state is passed on and all ranks work for the same time, whatever documents they hold.
// The other way, a ring of states (flash-linear-attention), is not priced.
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

void exchange_recurrent_heads(const LayerCosts& costs, const ExchangedTokens& tokens,
                              const ContextGroup& group, ContextExchanges& out, RangeUse& use) {
  out.clear();
  if (tokens.fullest == 0) return;
  const auto all_to_all = [&](std::int64_t width) {
    Op op{OpName::cp_all_to_all, Stream::cp};
    op.bytes = as_double(tokens.fullest) * as_double(width) * costs.profile().device().element_bytes;
    op.duration = to_picoseconds(
        costs.kernels.collectives().seconds(Collective::all_to_all, op.bytes, group.shape, use));
    return op;
  };
  const Op inputs = all_to_all(costs.recurrence.inputs(group.ranks)),
           output = all_to_all(costs.recurrence.outputs());
  out.forward = {inputs, output};
  out.backward = {output, inputs};
}

void recur(const ContextCase& of, ContextPasses& out, RangeUse&) {
  const std::size_t exchanges = of.context > 1 && of.tokens.fullest > 0 ? 2 : 0;
  out.forward.reset(of.context, exchanges);
  out.backward.reset(of.context, exchanges);
  const AttentionTimes share =
      of.costs.recurrence.times(as_double(sum_of(of.sharding.rank_tokens)) / of.context);
  for (std::size_t r = 0; r < at(of.context); ++r) {
    out.forward.add_run(exchanges / 2, r, share.forward);
    out.backward.add_run(exchanges / 2, r, share.backward);
  }
}

}  // namespace

constinit const ContextForm kRecurrenceForm = {
    .counts_in_workload = true,
    .held_tokens = [](std::int64_t rank_tokens, std::int64_t, int) { return 2 * rank_tokens; },
    .exchange = exchange_recurrent_heads,
    .attend = recur,
};

}  // namespace equipoise
