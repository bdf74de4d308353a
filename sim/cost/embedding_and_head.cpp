// What a layout's first and last stage do beside layers: the embedding, the head with its loss, and what a
// module of multi-token prediction reads.
#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {

void LayerCosts::embedding_ops(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens > 0) push_embedding(tokens, backward, ops, use);
}

void LayerCosts::push_embedding(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const {
  if (backward && !model_.training.trains(WeightKind::embedding)) return;
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

namespace {

// Reads and writes of a logit by a loss's kernels, PyTorch's where it has none of its own: in the logit's
// type, and in fp32. All but `fused` and `chunked` begin with an fp32 copy, and all but these and `sum` end
// with an fp32 gradient that is cast back.
struct LossPass {
  double own, fp32;
  [[nodiscard]] double bytes(double element) const { return own * element + fp32 * kFp32Bytes; }
};
struct Loss {
  LossPass forward, backward;
  bool is_cross_entropy = true;
};
constexpr Loss kLosses[] = {
    {{1, 2}, {1, 1}},         // fused: maximum and sum of exponentials of the cast logit; softmax to gradient
    {{1, 9}, {1, 3}},         // unfused: maximum 1, difference 2, exponentials 2, sum 1, quotient 2; scaled 2
    {{1, 2}, {1, 0}, false},  // sum: one read; the gradient is one number for all
    {{1, 2}, {1, 2}, false},  // mean: one read; one write
    {{1, 6}, {1, 9}, false},  // mean_square: difference 2, square 2, mean; gradient, power 2, double 2, product 3
    {{1, 3}, {1, 5}},         // pytorch: log_softmax 2; nll_loss's gradient 1, log_softmax's 3
    {{3, 0}, {0, 0}}};        // chunked: maximum and sum of exponentials 1; the gradient in place 2
static_assert(std::size(kLosses) == std::size(kLossNames));

}  // namespace

// What a module of multi-token prediction has before its layer: the next token's embedding and the hidden
// state, each with a norm of its own, side by side in one product that is cut by its columns and gathered.
void LayerCosts::push_prediction_input(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor, h = model_.hidden, out = (h + t - 1) / t;
  const double row_bytes = as_double(own_rows(tokens)) * as_double(h) * element_bytes_;
  const auto gather_output = [&] {
    if (t > 1) ops.push(tp_collective(OpName::tp_all_gather, tokens, h, use));
  };
  if (backward) {
    gather_output();
    push_quantize(WeightKind::head, tokens, out, ops, use);
    push_gradients(WeightKind::head, tokens, out, 2 * h, true, ops, use);
    ops.push(norm(2 * row_bytes, ElementwisePass::backward, use));
    push_embedding(tokens, true, ops, use);
    return;
  }
  push_embedding(tokens, false, ops, use);
  ops.push(norm(2 * row_bytes, ElementwisePass::forward, use));
  ops.push(
      moves(OpName::residual, Elementwise::copy, 4 * row_bytes, use));  // two rows read, one of both written
  push_quantize(WeightKind::head, own_rows(tokens), 2 * h, ops, use);
  push_column(OpName::mtp_projection, tokens, out, 2 * h, ops, use);
  gather_output();
}

void LayerCosts::head_forward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  for (int n = 0; n < model_.mtp_layers; ++n) push_prediction_input(tokens, false, ops, use);
  for (int n = 0; n <= model_.mtp_layers; ++n) push_head_forward(tokens, ops, use);
}

void LayerCosts::head_backward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  for (int n = 0; n <= model_.mtp_layers; ++n) push_head_backward(tokens, ops, use);
  for (int n = 0; n < model_.mtp_layers; ++n) push_prediction_input(tokens, true, ops, use);
}

void LayerCosts::push_head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor, vocab = (model_.vocab + t - 1) / t;
  ops.push(norm(as_double(own_rows(tokens)) * as_double(model_.hidden) * element_bytes_,
                ElementwisePass::forward, use));
  const Loss& loss = kLosses[at(framework_.loss)];
  const std::size_t first = ops.size();
  const std::int64_t rows = tokens_with_logits(framework_.loss, tokens, vocab, model_.hidden);
  push_column(OpName::logits_gemm, rows, vocab, model_.hidden, ops, use);
  ops.push(moves(
      OpName::cross_entropy, Elementwise::cross_entropy,
      as_double(rows) * as_double(vocab) * row_elements(element_bytes_, loss.forward.bytes(element_bytes_)),
      use));
  if (t > 1 && loss.is_cross_entropy) {
    Op reduce{OpName::tp_reduce_scatter, Stream::tp};  // maxima, sums and target logits: three floats a token
    reduce.bytes = 3 * as_double(rows) * kFp32Bytes;
    reduce.duration =
        to_picoseconds(collectives_.seconds(Collective::all_reduce, reduce.bytes, tp_group_, use));
    ops.push(reduce);
  }
  if (framework_.loss != LossKind::chunked) return;
  // Its products add up a weight's gradient, which is added to that of the step in the backward.
  push_gradients(WeightKind::head, gemm(OpName::input_gradient, rows, model_.hidden, vocab, use),
                 grouped_gemm(gemm_, OpName::weight_gradient, GemmRole::weight_gradient, 1, model_.hidden,
                              vocab, rows, use),
                 rows, vocab, model_.hidden, true, ops, use);
  ops.repeat(first, as_double(tokens) / as_double(rows));
}

void LayerCosts::push_head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor, vocab = (model_.vocab + t - 1) / t;
  const double hidden = as_double(own_rows(tokens)) * as_double(model_.hidden);
  if (framework_.loss == LossKind::chunked) {  // gradients that are there, times that of the loss
    const double weights =
        model_.training.trains(WeightKind::head) ? as_double(vocab) * as_double(model_.hidden) : 0;
    ops.push(moves(
        OpName::cross_entropy, Elementwise::copy,
        2 * hidden * element_bytes_ + weights * (2 * element_bytes_ + framework_.gradient_add_bytes), use));
  } else {
    const Loss& loss = kLosses[at(framework_.loss)];
    ops.push(moves(OpName::cross_entropy, Elementwise::cross_entropy,
                   as_double(tokens) * as_double(vocab) *
                       row_elements(2 * element_bytes_, loss.backward.bytes(element_bytes_)),
                   use, ElementwisePass::backward));
    push_gradients(WeightKind::head, tokens, vocab, model_.hidden, true, ops, use);
  }
  ops.push(norm(hidden * element_bytes_, ElementwisePass::backward, use));
}

}  // namespace equipoise
