#include "sim/cost/embedding_and_head_costs.h"

#include <cmath>

#include "policies/base/index.h"

namespace equipoise {

namespace {

// Reads and writes per logit by a loss's kernels (PyTorch's, if a loss has none of its own): in the logit's
// type, and in fp32. All but `fused` and `chunked` begin with an fp32 copy. All but these and `sum` end with
// an fp32 gradient that is cast back.
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
    {{1, 6},
     {1, 9},
     false},            // mean_square: difference 2, square 2, mean; gradient, power 2, double 2, product 3
    {{1, 3}, {1, 5}},   // pytorch: log_softmax 2; nll_loss's gradient 1, log_softmax's 3
    {{3, 0}, {0, 0}}};  // chunked: maximum and sum of exponentials 1; the gradient in place 2
static_assert(std::size(kLosses) == std::size(kLossNames));

}  // namespace

void EmbeddingAndHeadCosts::embedding(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens > 0) push_embedding(tokens, backward, ops, use);
}

void EmbeddingAndHeadCosts::push_embedding(std::int64_t tokens, bool backward, OpList& ops,
                                           RangeUse& use) const {
  if (backward && !basis.model.training.trains(WeightKind::embedding)) return;
  const double bytes = as_double(tokens) * as_double(basis.model.hidden) * basis.element_bytes;
  // Vocabulary-parallel lookup with a reduce-scatter (sequence parallelism); the backward gathers and adds.
  const bool own = basis.framework.own_kernels && kernels.elementwise().has(Elementwise::embedding);
  const Op lookup = own ? kernels.moves(OpName::embedding, Elementwise::embedding, (backward ? 3 : 2) * bytes,
                                        use, backward ? ElementwisePass::backward : ElementwisePass::forward)
                        : kernels.moves(OpName::embedding, Elementwise::copy, 2 * bytes, use);
  if (backward) {
    if (basis.layout.tensor > 1)
      ops.push(kernels.tp_collective(OpName::tp_all_gather, tokens, basis.model.hidden, use));
    ops.push(lookup);
  } else {
    ops.push(lookup);
    if (basis.layout.tensor > 1)
      ops.push(kernels.tp_collective(OpName::tp_reduce_scatter, tokens, basis.model.hidden, use));
  }
}

// What a module of multi-token prediction runs before its layer. The next token's embedding and the hidden
// state each pass a norm of their own. One product, cut by its columns and gathered, takes both together.
void EmbeddingAndHeadCosts::push_prediction_input(std::int64_t tokens, bool backward, OpList& ops,
                                                  RangeUse& use) const {
  const std::int64_t t = basis.layout.tensor, h = basis.model.hidden, out = (h + t - 1) / t;
  const double row_bytes = as_double(basis.own_rows(tokens)) * as_double(h) * basis.element_bytes;
  const auto gather_output = [&] {
    if (t > 1) ops.push(kernels.tp_collective(OpName::tp_all_gather, tokens, h, use));
  };
  if (backward) {
    gather_output();
    casts.push_quantize(WeightKind::head, tokens, out, ops, use);
    linear.push_gradients(WeightKind::head, tokens, out, 2 * h, true, ops, use);
    ops.push(rows.norm(2 * row_bytes, ElementwisePass::backward, use));
    push_embedding(tokens, true, ops, use);
    return;
  }
  push_embedding(tokens, false, ops, use);
  ops.push(rows.norm(2 * row_bytes, ElementwisePass::forward, use));
  ops.push(kernels.moves(OpName::residual, Elementwise::copy, 4 * row_bytes,
                         use));  // two rows read, one of both written
  casts.push_quantize(WeightKind::head, basis.own_rows(tokens), 2 * h, ops, use);
  linear.push_column(OpName::mtp_projection, tokens, out, 2 * h, ops, use);
  gather_output();
}

void EmbeddingAndHeadCosts::head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  for (int n = 0; n < basis.model.head().modules; ++n) push_prediction_input(tokens, false, ops, use);
  for (int n = 0; n < basis.model.head().passes(); ++n) push_head_forward(tokens, ops, use);
}

void EmbeddingAndHeadCosts::head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  ops.clear();
  if (tokens == 0) return;
  for (int n = 0; n < basis.model.head().passes(); ++n) push_head_backward(tokens, ops, use);
  for (int n = 0; n < basis.model.head().modules; ++n) push_prediction_input(tokens, true, ops, use);
}

void EmbeddingAndHeadCosts::push_head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  const std::int64_t t = basis.layout.tensor, vocab = (basis.model.vocab + t - 1) / t;
  ops.push(rows.norm(as_double(basis.own_rows(tokens)) * as_double(basis.model.hidden) * basis.element_bytes,
                     ElementwisePass::forward, use));
  const Loss& loss = kLosses[at(basis.framework.loss)];
  const std::size_t first = ops.size();
  const std::int64_t logit_rows = tokens_with_logits(basis.framework.loss, tokens, vocab, basis.model.hidden);
  linear.push_column(OpName::logits_gemm, logit_rows, vocab, basis.model.hidden, ops, use);
  ops.push(kernels.moves(OpName::cross_entropy, Elementwise::cross_entropy,
                         as_double(logit_rows) * as_double(vocab) *
                             basis.row_elements(basis.element_bytes, loss.forward.bytes(basis.element_bytes)),
                         use));
  if (t > 1 && loss.is_cross_entropy) {
    Op reduce{OpName::tp_reduce_scatter, Stream::tp};  // maxima, sums, target logits: three floats per token
    reduce.bytes = 3 * as_double(logit_rows) * kFp32Bytes;
    reduce.duration = to_picoseconds(
        kernels.collectives().seconds(Collective::all_reduce, reduce.bytes, basis.tp_group, use));
    ops.push(reduce);
  }
  if (basis.framework.loss != LossKind::chunked) return;
  // Its products accumulate a weight's gradient, which the backward adds to the step's.
  linear.push_gradients(
      WeightKind::head, kernels.gemm(OpName::input_gradient, logit_rows, basis.model.hidden, vocab, use),
      kernels.grouped_gemm(kernels.gemm_model(), OpName::weight_gradient, GemmRole::weight_gradient, 1,
                           basis.model.hidden, vocab, logit_rows, use),
      logit_rows, vocab, basis.model.hidden, true, ops, use);
  ops.repeat(first, as_double(tokens) / as_double(logit_rows));
}

void EmbeddingAndHeadCosts::push_head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  const std::int64_t t = basis.layout.tensor, vocab = (basis.model.vocab + t - 1) / t;
  const double hidden = as_double(basis.own_rows(tokens)) * as_double(basis.model.hidden);
  if (basis.framework.loss == LossKind::chunked) {  // multiplies existing gradients by the loss's gradient
    const double weights =
        basis.model.training.trains(WeightKind::head) ? as_double(vocab) * as_double(basis.model.hidden) : 0;
    ops.push(kernels.moves(OpName::cross_entropy, Elementwise::copy,
                           2 * hidden * basis.element_bytes +
                               weights * (2 * basis.element_bytes + basis.framework.gradient_add_bytes),
                           use));
  } else {
    const Loss& loss = kLosses[at(basis.framework.loss)];
    ops.push(kernels.moves(
        OpName::cross_entropy, Elementwise::cross_entropy,
        as_double(tokens) * as_double(vocab) *
            basis.row_elements(2 * basis.element_bytes, loss.backward.bytes(basis.element_bytes)),
        use, ElementwisePass::backward));
    linear.push_gradients(WeightKind::head, tokens, vocab, basis.model.hidden, true, ops, use);
  }
  ops.push(rows.norm(hidden * basis.element_bytes, ElementwisePass::backward, use));
}

}  // namespace equipoise
