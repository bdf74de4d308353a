// All-to-all of heads (DeepSpeed-Ulysses, arXiv 2309.14509).
//
// One all-to-all takes Q, K and V of a rank's tokens to the ranks that have their heads; each rank attends
// with its share of the heads to all tokens, so that no rank is slower; another all-to-all brings the output
// back. The backward does the same with the gradients. The heads must be a multiple of the ranks; KV heads
// are replicated where there are fewer of them than ranks.
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

struct HeadBytes {
  double inputs = 0, output = 0;  // bytes of a rank's Q, K and V, and of its attention's result
};

HeadBytes bytes_of_heads(const LayerCosts& costs, std::int64_t tokens, int context) {
  const ModelShape& model = costs.model();
  const double element_bytes = costs.profile().device().element_bytes;
  const int heads = model.heads / costs.layout().tensor;
  const double query_bytes = as_double(tokens) * heads * element_bytes;
  const int kv_heads = std::max(model.mla ? heads : model.kv_heads / costs.layout().tensor, context);
  const double kv_bytes = as_double(tokens) * kv_heads * (model.head_dim + model.value_dim()) * element_bytes;
  return {query_bytes * model.head_dim + kv_bytes, query_bytes * model.value_dim()};
}

void exchange_heads(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                    ContextExchanges& out, RangeUse& use) {
  out.clear();
  if (tokens.distributed + tokens.earlier == 0) return;
  const auto all_to_all = [&](double bytes) {
    Op op{OpName::cp_all_to_all, Stream::cp};
    op.bytes = bytes;
    op.duration =
        to_picoseconds(costs.kernels.collectives().seconds(Collective::all_to_all, bytes, group.shape, use));
    return op;
  };
  const HeadBytes bytes = bytes_of_heads(costs, tokens.fullest, group.ranks);
  const Op inputs = all_to_all(bytes.inputs), output = all_to_all(bytes.output);
  out.forward = {inputs, output};
  out.backward = {output, inputs};
}

void attend_with_share(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  out.forward.reset(of.context, 2);
  out.backward.reset(of.context, 2);
  const Sharding& merged = *of.merged;
  RangeUse of_rank;  // all ranks make the same call
  const AttentionTimes all =
      of.attention.times(merged.segments, merged.pieces, of.window, of.context, of_rank);
  use.add(of_rank, of.context);
  for (std::size_t r = 0; r < at(of.context); ++r) {
    out.forward.add_run(1, r, all.forward);
    out.backward.add_run(1, r, of.backward(all));
  }
}

// Both directions, forward and backward; the fullest rank has at least its share of the tokens.
double least_all_to_all(const LayerCosts& costs, const ContextGroup& group) {
  constexpr std::int64_t kTokens = 1 << 10;  // any number works, since bytes are proportional to it
  const HeadBytes bytes = bytes_of_heads(costs, kTokens, group.ranks);
  return 2 * (bytes.inputs + bytes.output) / kTokens / group.ranks *
         costs.kernels.collectives().least_seconds_per_byte(Collective::all_to_all, group.shape);
}

}  // namespace

constinit const ContextForm kUlyssesForm = {
    .head_shares = [](const Layout&, int degree) { return degree; },
    .held_tokens = [](std::int64_t rank_tokens, std::int64_t, int) { return 2 * rank_tokens; },
    .exchange = exchange_heads,
    .attend = attend_with_share,
    .least_seconds = least_all_to_all,
};

}  // namespace equipoise
