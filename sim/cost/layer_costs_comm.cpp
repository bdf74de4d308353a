// Attention, context-parallel and pipeline communication, and the ends of the model.
#include "policies/base/index.h"
#include "profiler/profile/attention.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

constexpr double kFp32Bytes = 4;

// Matrix FLOPs of causal attention forward: 2 (d_qk + d_v) per head and pair; backward counts 2.5 times that.
double attention_flops(const ModelShape& m, int tensor, std::span<const QueryKeys> pieces,
                       std::int64_t window) {
  double pairs = 0;
  for (const QueryKeys& p : pieces)
    pairs += window > 0 ? causal_pairs(as_double(p.queries), as_double(p.keys - p.queries), as_double(window))
                        : as_double(p.queries) * (as_double(p.keys) - 0.5 * as_double(p.queries - 1));
  return 2.0 * (m.head_dim + m.value_dim()) * (m.heads / tensor) * pairs;
}

}  // namespace

Picoseconds LayerCosts::attention_forward_time(const AttentionCall& call, RangeUse& use) const {
  return to_picoseconds(attention_.forward_seconds(call, use) * framework_.attention_slowdown);
}

Picoseconds LayerCosts::attention_forward_time(std::span<const QueryKeys> pieces, RangeUse& use,
                                               std::int64_t window) const {
  return to_picoseconds(attention_.forward_seconds(pieces, use, window) * framework_.attention_slowdown);
}

LayerCosts::AttentionTimes LayerCosts::attention_times(const AttentionCall& call, RangeUse& use,
                                                       int ulysses) const {
  const AttentionModel& model = attention_on(ulysses);
  return {to_picoseconds(model.forward_seconds(call, use) * framework_.attention_slowdown),
          to_picoseconds(model.backward_seconds(call, use) * framework_.attention_slowdown)};
}

LayerCosts::AttentionTimes LayerCosts::attention_times(std::span<const QueryKeys> pieces, RangeUse& use,
                                                       std::int64_t window, int ulysses) const {
  if (prices_counts()) return attention_times(count_call(pieces, window), use, ulysses);
  const AttentionModel& model = attention_on(ulysses);
  return {to_picoseconds(model.forward_seconds(pieces, use, window) * framework_.attention_slowdown),
          to_picoseconds(model.backward_seconds(pieces, use, window) * framework_.attention_slowdown)};
}

Op LayerCosts::attention_forward(std::span<const QueryKeys> pieces, RangeUse& use,
                                 std::int64_t window) const {
  Op op{OpName::attention, Stream::compute};
  op.duration = attention_forward_time(pieces, use, window);
  op.flops = attention_flops(model_, layout_.tensor, pieces, window);
  return op;
}

Op LayerCosts::attention_backward(std::span<const QueryKeys> pieces, RangeUse& use,
                                  std::int64_t window) const {
  Op op{OpName::attention, Stream::compute};
  op.duration =
      to_picoseconds(attention_.backward_seconds(pieces, use, window) * framework_.attention_slowdown);
  op.flops = 2.5 * attention_flops(model_, layout_.tensor, pieces, window);
  return op;
}

// What comes from other ranks lies by rank and is put into the order of documents.
Op LayerCosts::with_copies(Op op, double bytes, RangeUse& use) const {
  if (framework_.own_kernels) op.duration += moves(op.name, Elementwise::copy, bytes, use).duration;
  return op;
}

Op LayerCosts::kv_all_gather(std::int64_t gathered_tokens, int context, RangeUse& use) const {
  Op op{OpName::cp_all_gather, Stream::cp};
  op.bytes = as_double(gathered_tokens) * as_double(kv_bytes_per_token_);
  op.duration = to_picoseconds(
      collectives_.seconds(Collective::all_gather, op.bytes, grid_.context_shape(context), use));
  return with_copies(op, 2 * op.bytes, use);
}

Op LayerCosts::kv_reduce_scatter(std::int64_t gathered_tokens, int context, RangeUse& use) const {
  Op op{OpName::cp_reduce_scatter, Stream::cp};
  op.bytes = as_double(gathered_tokens) * as_double(kv_bytes_per_token_);
  op.duration = to_picoseconds(
      collectives_.seconds(Collective::reduce_scatter, op.bytes, grid_.context_shape(context), use));
  return with_copies(op, 2 * op.bytes, use);
}

Op LayerCosts::ring_step(std::int64_t tokens, int context, bool backward, RangeUse& use) const {
  Op op{OpName::cp_ring_step, Stream::cp};
  op.bytes =
      (backward ? 2.0 : 1.0) * as_double(tokens) * as_double(kv_bytes_per_token_);  // K, V and, later, theirs
  const GroupShape group = grid_.context_shape(context);
  // Every rank sends to its neighbour at once; where the ring crosses nodes, those hops set the pace.
  const GroupShape hop{2, group.ranks_per_node == group.ranks ? 2 : 1};
  op.duration = to_picoseconds(collectives_.seconds(Collective::send_recv, op.bytes, hop, use));
  return op;
}

Op LayerCosts::ulysses_exchange(std::int64_t tokens, int context, bool output_only, RangeUse& use) const {
  Op op{OpName::cp_all_to_all, Stream::cp};
  const double query_bytes = as_double(tokens) * (model_.heads / layout_.tensor) * element_bytes_;
  // KV heads are replicated when there are fewer of them than ranks.
  const int kv_heads =
      std::max(model_.mla ? model_.heads / layout_.tensor : model_.kv_heads / layout_.tensor, context);
  const double kv_bytes =
      as_double(tokens) * kv_heads * (model_.head_dim + model_.value_dim()) * element_bytes_;
  op.bytes = output_only ? query_bytes * model_.value_dim() : query_bytes * model_.head_dim + kv_bytes;
  op.duration = to_picoseconds(
      collectives_.seconds(Collective::all_to_all, op.bytes, grid_.context_shape(context), use));
  return op;
}

void LayerCosts::embedding_ops(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  const double bytes = as_double(tokens) * as_double(model_.hidden) * element_bytes_;
  // Vocabulary-parallel lookup, reduce-scattered into the sequence-parallel form; backward gathers and adds.
  const bool own = framework_.own_kernels && elementwise_.has(Elementwise::embedding);
  const Op lookup = own ? moves(OpName::embedding, Elementwise::embedding, (backward ? 3 : 2) * bytes, use,
                                backward ? ElementwisePass::backward : ElementwisePass::forward)
                        : moves(OpName::embedding, Elementwise::copy, 2 * bytes, use);
  if (backward) {
    if (layout_.tensor > 1) ops.push(tp_collective(OpName::tp_all_gather, tokens, model_.hidden, use));
    ops.push(lookup);
  } else {
    ops.push(lookup);
    if (layout_.tensor > 1) ops.push(tp_collective(OpName::tp_reduce_scatter, tokens, model_.hidden, use));
  }
}

void LayerCosts::head_forward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  const std::int64_t t = layout_.tensor;
  const std::int64_t vocab = (model_.vocab + t - 1) / t;
  ops.push(moves(OpName::rms_norm, Elementwise::rms_norm,
                 2 * as_double((tokens + t - 1) / t) * as_double(model_.hidden) * element_bytes_, use));
  push_column(OpName::logits_gemm, tokens, vocab, model_.hidden, ops, use);
  // Cast to fp32, maximum and sum of exponentials over the local vocabulary (two reads, one write).
  ops.push(moves(
      OpName::cross_entropy, Elementwise::cross_entropy,
      as_double(tokens) * as_double(vocab) * row_elements(element_bytes_, element_bytes_ + 2 * kFp32Bytes),
      use));
  if (t > 1) {
    Op reduce{OpName::tp_reduce_scatter, Stream::tp};  // maxima, sums and target logits: three floats a token
    reduce.bytes = 3 * as_double(tokens) * kFp32Bytes;
    reduce.duration =
        to_picoseconds(collectives_.seconds(Collective::all_reduce, reduce.bytes, tp_group_, use));
    ops.push(reduce);
  }
}

void LayerCosts::head_backward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  const std::int64_t t = layout_.tensor;
  const std::int64_t vocab = (model_.vocab + t - 1) / t;
  ops.push(moves(
      OpName::cross_entropy, Elementwise::cross_entropy,
      as_double(tokens) * as_double(vocab) * row_elements(2 * element_bytes_, kFp32Bytes + element_bytes_),
      use, ElementwisePass::backward));
  push_gradients(tokens, vocab, model_.hidden, true, ops, use);
  ops.push(
      moves(OpName::rms_norm, Elementwise::rms_norm,
            row_elements(3, 4) * as_double((tokens + t - 1) / t) * as_double(model_.hidden) * element_bytes_,
            use, ElementwisePass::backward));
}

Op LayerCosts::pipeline_send(std::int64_t tokens, int from_stage, int to_stage, RangeUse& use) const {
  Op op{OpName::pp_send, Stream::pp};
  op.bytes = as_double(tokens) * as_double(model_.hidden) / layout_.tensor * element_bytes_;
  op.duration = to_picoseconds(
      collectives_.seconds(Collective::send_recv, op.bytes, grid_.hop_shape(from_stage, to_stage), use));
  return op;
}

}  // namespace equipoise
