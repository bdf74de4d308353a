#include "sim/cost/layer_ops.h"

#include <algorithm>
#include <cmath>

#include "policies/base/index.h"

namespace equipoise {

// Tokens of a rank that sends as many as arrive. A rank without tokens is priced like it, so that its calls
// have shapes that others use, too.
static std::int64_t tokens_like(const ExpertArrivals& arriving) {
  return std::max<std::int64_t>(1, std::llround(arriving.tokens));
}

void LayerOps::push_projections(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t t = basis.layout.tensor;
  const std::int64_t h = basis.model.hidden;
  if (!basis.model.mla) {
    const std::int64_t gates = basis.model.gated_attention ? 1 : 0;
    const std::int64_t q = (1 + gates) * std::int64_t{basis.model.heads} / t * basis.model.head_dim;
    const std::int64_t kv = std::max<std::int64_t>(1, basis.model.kv_heads / t) * basis.model.head_dim;
    const auto product = [&](OpName name) {
      return backward ? linear.products(name, n, {q, kv, kv}, h, use)
                      : linear.fused_products(name, n, {q, kv, kv}, h, use);
    };
    if (backward) {
      casts.push_quantize(WeightKind::qkv, n, q + 2 * kv, ops, use);
      linear.push_gradients(WeightKind::qkv, product(OpName::input_gradient),
                            product(OpName::weight_gradient), n, q + 2 * kv, h, true, ops, use);
    } else {
      linear.push_gathered(product(OpName::qkv_gemm), n, q + 2 * kv, h, ops, use);
    }
    return;
  }
  const MlaShape& a = *basis.model.mla;
  const std::int64_t q_width = std::int64_t{basis.model.heads} * (a.nope_dim + a.rope_dim) / t;
  const std::int64_t kv_width = std::int64_t{basis.model.heads} * (a.nope_dim + a.v_dim) / t;
  const std::int64_t q_rank = a.q_lora > 0 ? a.q_lora : h;
  const std::int64_t own_rows = n / t + (n % t != 0);
  // The down projections are small and replicated over TP; the up projections are column-parallel.
  if (backward) {
    casts.push_quantize(WeightKind::qkv, n, kv_width + q_width, ops, use);
    linear.push_gradients(WeightKind::qkv, n, kv_width, a.kv_lora, true, ops, use);
    linear.push_gradients(WeightKind::qkv, n, q_width, q_rank, true, ops, use);
    linear.push_replicated_gradients(WeightKind::qkv, own_rows, a.kv_lora + a.rope_dim, h, ops, use);
    if (a.q_lora > 0) linear.push_replicated_gradients(WeightKind::qkv, own_rows, a.q_lora, h, ops, use);
    return;
  }
  if (a.q_lora > 0) linear.push_replicated(own_rows, a.q_lora, h, ops, use);
  linear.push_replicated(own_rows, a.kv_lora + a.rope_dim, h, ops, use);
  push_latent_expansion(n, ops, use);
}

// The projections of an indexer: its queries from the compressed ones, and its keys and weights from the
// layer's input, which is gathered over TP once more. It learns from a loss of its own, whose gradients end
// at its inputs.
void LayerOps::push_index(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const IndexerShape& indexer = *basis.model.indexer;
  const std::int64_t queries = std::int64_t{indexer.heads} * indexer.dim, rank = basis.model.mla->q_lora;
  const std::int64_t others = indexer.dim + indexer.heads, h = basis.model.hidden;
  if (!backward) {
    linear.push_replicated(n, queries, rank, ops, use);
    linear.push_column(OpName::mla_projection, n, others, h, ops, use);
  } else if (basis.model.training.trains(WeightKind::qkv)) {
    ops.push(linear.products(OpName::weight_gradient, n, {queries}, rank, use));
    ops.push(linear.products(OpName::weight_gradient, n, {others}, h, use));
  }
}

// The up projections of multi-head latent attention. With an indexer those of keys and values are applied to
// queries and to attention's output, by as many products.
void LayerOps::push_latent_expansion(std::int64_t n, OpList& ops, RangeUse& use) const {
  const MlaShape& a = *basis.model.mla;
  const std::int64_t heads = basis.model.heads / basis.layout.tensor;
  linear.push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.rope_dim),
                     a.q_lora > 0 ? a.q_lora : basis.model.hidden, ops, use);
  linear.push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.v_dim), a.kv_lora, ops, use);
}

// A gate's sigmoid scales attention's output. Forward: reads both and writes their product. Backward: reads
// the gradient and both, writes the gradients of both.
void LayerOps::push_attention_gate(std::int64_t n, ElementwisePass pass, OpList& ops, RangeUse& use) const {
  if (!basis.model.gated_attention) return;
  const double moved = pass == ElementwisePass::forward ? 3 : 5;
  const double elements = as_double(n) * as_double(attended_width());
  ops.push(kernels.moves(OpName::activation, Elementwise::swiglu, moved * elements * basis.element_bytes, use,
                         pass));
}

void LayerOps::push_output(std::int64_t n, std::int64_t width, OpList& ops, RangeUse& use) const {
  casts.push_quantize(WeightKind::proj, n, width, ops, use, false);
  linear.push_row(OpName::out_gemm, n, basis.model.hidden, width, ops, use);
}

void LayerOps::push_output_gradients(std::int64_t n, std::int64_t width, OpList& ops, RangeUse& use) const {
  linear.push_gradients(WeightKind::proj, n, basis.model.hidden, width, false, ops, use);
}

void LayerOps::forward(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                       OpList& after, RangeUse& use, std::int64_t documents) const {
  before.clear();
  after.clear();
  if (n == 0) {
    if (!is_moe(kind) || arriving.tokens == 0) return;
    forward(kind, tokens_like(arriving), arriving, before, after, use);
    before.clear();
    after.keep_arrived();
    return;
  }
  const std::int64_t t = basis.layout.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(basis.model.hidden) * basis.element_bytes;
  before.push(rows.norm(row_bytes, ElementwisePass::forward, use));
  casts.push_weight_copies(kind, false, before, use);
  casts.push_input_cast(n, before, use);
  const Mixer mixer = mixer_of(kind);
  if (recurs(mixer)) {
    recurrence.push_inputs(n, before, use);
    recurrence.push_output_gate(n, ElementwisePass::forward, after, use);
    push_output(n, recurrence.outputs(), after, use);
    after.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  }
  if (attends(mixer)) {
    push_projections(n, false, before, use);
    if (indexes(mixer)) push_index(n, false, before, use);
    before.push(rows.rotary(n, documents, ElementwisePass::forward, use));
    push_attention_gate(n, ElementwisePass::forward, after, use);
    push_output(n, attended_width(), after, use);
    after.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  }
  if (!has_ffn(kind)) return mark_unneeded(after, recurrence.output_gate(), WeightKind::proj);
  const std::size_t ffn_begin = after.size();
  if (!basis.model.one_norm) after.push(rows.norm(row_bytes, ElementwisePass::forward, use));
  if (is_moe(kind))
    experts.push(n, false, arriving, after, use);
  else
    casts.push_input_cast(n, after, use), ffn.push(n, basis.model.ffn, false, after, use);
  after.mark_ffn(ffn_begin);
  after.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  if (!is_moe(kind)) mark_unneeded(after, OpName::activation, WeightKind::fc2);
}

void LayerOps::backward(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                        OpList& after, RangeUse& use, std::int64_t documents) const {
  before.clear();
  after.clear();
  if (n == 0) {
    if (!is_moe(kind) || arriving.tokens == 0) return;
    backward(kind, tokens_like(arriving), arriving, before, after, use);
    after.clear();
    before.keep_arrived();
    return;
  }
  const std::int64_t t = basis.layout.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(basis.model.hidden) * basis.element_bytes;
  // What named recomputation repeats comes before the first op that needs it.
  const auto repeat_norm = [&](OpList& ops) {
    if (!basis.layout.repeats(RecomputeModule::layernorm)) return;
    ops.push(rows.norm(row_bytes, ElementwisePass::forward, use));
    ops.mark_again(ops.size() - 1);
  };
  repeat_norm(before);
  casts.push_weight_copies(kind, true, before, use);
  push_per_op(n, documents, before, use);
  if (has_ffn(kind)) push_ffn_backward(kind, n, arriving, before, use);
  const Mixer mixer = mixer_of(kind);
  casts.push_quantize(WeightKind::proj, casts.cast_rows(n), basis.model.hidden, before, use);
  const auto add_gradients = [&] {  // of the mixer's input, to those that are there
    after.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use,
                             ElementwisePass::backward));
  };
  if (recurs(mixer)) {
    push_output_gradients(n, recurrence.outputs(), before, use);
    recurrence.push_output_gate(n, ElementwisePass::backward, before, use);
    repeat_norm(after);
    recurrence.push_input_gradients(n, after, use);
  }
  if (attends(mixer)) {
    push_output_gradients(n, attended_width(), before, use);
    push_attention_gate(n, ElementwisePass::backward, before, use);
    if (basis.layout.repeats(RecomputeModule::mla_up_proj)) {
      const std::size_t expansion = before.size();
      push_latent_expansion(n, before, use);
      before.push(rows.rotary(n, documents, ElementwisePass::forward, use));
      before.mark_again(expansion);
    }
    after.push(rows.rotary(n, documents, ElementwisePass::backward, use));
    if (!recurs(mixer) && !basis.model.one_norm) repeat_norm(after);
    if (indexes(mixer)) push_index(n, true, after, use);
    push_projections(n, true, after, use);
  }
  if (mixer == Mixer::parallel) add_gradients();
  after.push(rows.norm(row_bytes, ElementwisePass::backward, use));
  add_gradients();
}

// The FFN's backward with its norm, after what named recomputation repeats of it.
void LayerOps::push_ffn_backward(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving,
                                 OpList& before, RangeUse& use) const {
  const double row_bytes = as_double(basis.own_rows(n)) * as_double(basis.model.hidden) * basis.element_bytes;
  const std::size_t first = before.size();
  const bool sparse = is_moe(kind);
  if (sparse && basis.layout.repeats(RecomputeModule::moe))
    experts.push(n, false, arriving, before, use);
  else if (sparse && basis.layout.repeats(RecomputeModule::shared_experts) &&
           basis.model.moe->shared_width() > 0)
    ffn.push(n, basis.model.moe->shared_width(), false, before, use);
  else if (!sparse && basis.layout.repeats(RecomputeModule::mlp))
    ffn.push(n, basis.model.ffn, false, before, use);
  before.mark_again(first);
  if (sparse)
    experts.push(n, true, arriving, before, use);
  else
    ffn.push(n, basis.model.ffn, true, before, use);
  // Norm backward reads the gradient, the input and the kept output; its result joins the residual's
  // gradient. Without a norm of its own the FFN's gradient joins that of the mixer's input.
  if (!basis.model.one_norm) before.push(rows.norm(row_bytes, ElementwisePass::backward, use));
  before.mark_ffn(0);
  before.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use,
                            ElementwisePass::backward));
}

// Recomputes as torchtitan's policy does (torchtitan/parallelisms/parallelize_llama.py at 9dec370). It keeps
// the outputs of attention, of reduce-scatters and of the 1st, 3rd, 5th and 7th product of a layer: Q, V,
// gate, down. So K, the output projection and up run again, and everything between products. The output
// projection does not if a reduce-scatter's output replaces it.
void LayerOps::push_per_op(std::int64_t n, std::int64_t documents, OpList& ops, RangeUse& use) const {
  if (!basis.layout.repeats(RecomputeModule::per_op)) return;
  const std::size_t first = ops.size();
  const std::int64_t t = basis.layout.tensor, h = basis.model.hidden, f = basis.model.ffn / t;
  const std::int64_t kv = std::max<std::int64_t>(1, basis.model.kv_heads / t) * basis.model.head_dim;
  const double row_bytes = as_double(basis.own_rows(n)) * as_double(h) * basis.element_bytes;
  ops.push(rows.norm(row_bytes, ElementwisePass::forward, use));
  casts.push_input_cast(n, ops, use);
  linear.push_column(OpName::qkv_gemm, n, kv, h, ops, use);
  ops.push(rows.rotary(n, documents, ElementwisePass::forward, use));
  const std::int64_t attended = std::int64_t{basis.model.heads} * basis.model.value_dim() / t;
  casts.push_quantize(WeightKind::proj, n, attended, ops, use, false);
  if (t == 1) linear.push_row(OpName::out_gemm, n, h, attended, ops, use);
  ops.push(kernels.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  if (!basis.model.one_norm) ops.push(rows.norm(row_bytes, ElementwisePass::forward, use));
  casts.push_input_cast(n, ops, use);
  if (basis.model.gated_ffn) linear.push_column(OpName::gate_up_gemm, n, f, h, ops, use);
  ops.push(rows.activation(n, f, ElementwisePass::forward, use));
  casts.push_quantize(WeightKind::fc2, n, f, ops, use);
  ops.mark_again(first);
}

// A checkpoint that is not reentrant ends its recomputation with the last tensor that the backward needs
// (torch.utils.checkpoint, set_checkpoint_early_stop), and torch.compile drops what nobody reads. That tensor
// is the input of the layer's last product, which torchao's backward casts anyway. The last op of the name
// `maker` makes it: the FFN's activation, or a recurrence's output norm if no FFN follows.
void LayerOps::mark_unneeded(OpList& after, OpName maker, WeightKind product) const {
  if (!basis.framework.early_stop || basis.model.training.adapts(product)) return;
  std::size_t needed = after.size();
  while (after.ops()[needed - 1].name != maker) --needed;
  if (after.ops()[needed].name == OpName::quantize && !basis.casts_by_torchao()) ++needed;
  after.mark_once(needed);
}

}  // namespace equipoise
