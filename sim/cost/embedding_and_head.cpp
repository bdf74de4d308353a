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

struct LossBytes {
  double forward, backward;
};

// Read and written of a logit by a loss's kernels, PyTorch's where it has none of its own. `element`: bytes
// of a logit. All but `fused` begin with an fp32 copy, and all but it and `sum` end with an fp32 gradient
// that is cast back.
LossBytes loss_bytes(LossKind loss, double element) {
  const double cast = element + kFp32Bytes;
  switch (loss) {
    case LossKind::fused:  // cast to fp32, maximum and sum of exponentials: two reads, one write; softmax to
                           // gradient
      return {element + 2 * kFp32Bytes, kFp32Bytes + element};
    case LossKind::unfused:  // maximum (1), difference (2), exponentials (2), sum (1), quotient (2); scaled
                             // (2)
      return {cast + 8 * kFp32Bytes, 2 * kFp32Bytes + cast};
    case LossKind::pytorch:  // log_softmax (2); nll_loss's gradient (1), log_softmax's (3)
      return {cast + 2 * kFp32Bytes, 4 * kFp32Bytes + cast};
    case LossKind::sum:  // one read; the gradient is one number for all
      return {cast + kFp32Bytes, element};
    case LossKind::mean:  // one read; one write
      return {cast + kFp32Bytes, kFp32Bytes + cast};
    case LossKind::mean_square:  // difference 2, square 2, mean 1; gradient 1, power 2, its double 2, product
                                 // 3
      return {cast + 5 * kFp32Bytes, 8 * kFp32Bytes + cast};
  }
  return {};
}

bool is_cross_entropy(LossKind loss) {
  return loss == LossKind::fused || loss == LossKind::unfused || loss == LossKind::pytorch;
}

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
  const std::int64_t t = layout_.tensor;
  const std::int64_t vocab = (model_.vocab + t - 1) / t;
  ops.push(norm(as_double(own_rows(tokens)) * as_double(model_.hidden) * element_bytes_,
                ElementwisePass::forward, use));
  push_column(OpName::logits_gemm, tokens, vocab, model_.hidden, ops, use);
  ops.push(moves(OpName::cross_entropy, Elementwise::cross_entropy,
                 as_double(tokens) * as_double(vocab) *
                     row_elements(element_bytes_, loss_bytes(framework_.loss, element_bytes_).forward),
                 use));
  if (t > 1 && is_cross_entropy(framework_.loss)) {
    Op reduce{OpName::tp_reduce_scatter, Stream::tp};  // maxima, sums and target logits: three floats a token
    reduce.bytes = 3 * as_double(tokens) * kFp32Bytes;
    reduce.duration =
        to_picoseconds(collectives_.seconds(Collective::all_reduce, reduce.bytes, tp_group_, use));
    ops.push(reduce);
  }
}

void LayerCosts::push_head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor;
  const std::int64_t vocab = (model_.vocab + t - 1) / t;
  ops.push(moves(OpName::cross_entropy, Elementwise::cross_entropy,
                 as_double(tokens) * as_double(vocab) *
                     row_elements(2 * element_bytes_, loss_bytes(framework_.loss, element_bytes_).backward),
                 use, ElementwisePass::backward));
  push_gradients(WeightKind::head, tokens, vocab, model_.hidden, true, ops, use);
  ops.push(norm(as_double(own_rows(tokens)) * as_double(model_.hidden) * element_bytes_,
                ElementwisePass::backward, use));
}

}  // namespace equipoise
