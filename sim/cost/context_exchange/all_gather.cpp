// All-gather of K and V (Llama 3, arXiv 2407.21783, section 3.3.2).
//
// Every rank gathers the K and V of all tokens, then attends with its own queries. The backward gathers them
// again, since keeping them would take a group's whole context on every rank (framework.keep_gathered_kv:
// they are kept), and reduce-scatters their gradients after the attention. Slices that one rank holds whole
// (Skrull) are computed while the K and V of the distributed ones are gathered.
//
// What lies by rank is put into the order of documents, and gradients back. Before that a framework's ranks
// zero a gradient of all K and V and add the part of their queries for each run of keys, with one kernel for
// K and one for V. A rank has two runs by sequence, and two of each document by document.
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

constexpr double kOrdered = 2;         // per byte: read and written
constexpr double kZeroedAndAdded = 4;  // zeroed, read twice and written

Op gather_or_scatter(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                     bool gather, RangeUse& use) {
  Op op{gather ? OpName::cp_all_gather : OpName::cp_reduce_scatter, Stream::cp};
  op.bytes = as_double(tokens.distributed + tokens.earlier) * group.kv_bytes_per_token;
  op.duration = to_picoseconds(costs.kernels.collectives().seconds(
      gather ? Collective::all_gather : Collective::reduce_scatter, op.bytes, group.shape, use));
  const bool added = !gather && !costs.framework().own_kernels;
  op.duration += costs.kernels.moves(op.name, Elementwise::copy, kOrdered * op.bytes, use).duration;
  if (!added) return op;
  op.duration += costs.kernels.moves(op.name, Elementwise::copy, kZeroedAndAdded * op.bytes, use).duration;
  op.duration += 2 * tokens.key_runs * costs.kernels.moves(op.name, Elementwise::copy, 1, use).duration;
  return op;
}

void exchange_all(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                  ContextExchanges& out, RangeUse& use) {
  out.clear();
  if (tokens.distributed + tokens.earlier == 0) return;
  const Op gather = gather_or_scatter(costs, tokens, group, true, use);
  out.forward = {gather};
  if (!costs.framework().keep_gathered_kv) out.backward = {gather};
  out.backward.push_back(gather_or_scatter(costs, tokens, group, false, use));
}

void attend_to_all(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  // If K and V were kept, the backward attends before its first exchange, else after it.
  const std::size_t gathers = of.costs.framework().keep_gathered_kv ? 0 : 1;
  out.forward.reset(of.context, 1);
  out.backward.reset(of.context, gathers + 1);
  for (std::size_t r = 0; r < at(of.context); ++r) {
    const RankAttention rank = rank_attention(of, static_cast<int>(r), use);
    out.forward.add_under(0, r, rank.placed.forward);
    out.forward.add_run(1, r, rank.distributed.forward);
    out.backward.add_under(0, r, of.backward(rank.placed));
    out.backward.add_run(gathers, r, of.backward(rank.distributed));
  }
}

double least_gathering(const LayerCosts& costs, const ContextGroup& group) {
  const auto rate = [&](Collective kind) {
    return costs.kernels.collectives().least_seconds_per_byte(kind, group.shape);
  };
  return group.kv_bytes_per_token *
         ((costs.framework().keep_gathered_kv ? 1 : 2) * rate(Collective::all_gather) +
          rate(Collective::reduce_scatter));
}

}  // namespace

constinit const ContextForm kAllGatherForm = {
    .counts_in_workload = true,
    .held_tokens = [](std::int64_t, std::int64_t group_tokens, int) { return group_tokens; },
    .exchange = exchange_all,
    .attend = attend_to_all,
    .least_seconds = least_gathering,
};

}  // namespace equipoise
