#include "sim/cost/layer_ops.h"

#include <algorithm>
#include <cmath>

#include "policies/base/index.h"

namespace equipoise {

// Tokens of a rank that sends as many as arrive: one without any is priced along it, so that the calls are of
// shapes that others make, too.
static std::int64_t tokens_like(const ExpertArrivals& arriving) {
  return std::max<std::int64_t>(1, std::llround(arriving.tokens));
}

void LayerOps::push_projections(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t t = basis_.layout.tensor;
  const std::int64_t h = basis_.model.hidden;
  if (!basis_.model.mla) {
    const std::int64_t q = std::int64_t{basis_.model.heads} / t * basis_.model.head_dim;
    const std::int64_t kv = std::max<std::int64_t>(1, basis_.model.kv_heads / t) * basis_.model.head_dim;
    const auto product = [&](OpName name) {
      return backward ? linear_.products(name, n, {q, kv, kv}, h, use)
                      : linear_.fused_products(name, n, {q, kv, kv}, h, use);
    };
    if (backward) {
      casts_.push_quantize(WeightKind::qkv, n, q + 2 * kv, ops, use);
      linear_.push_gradients(WeightKind::qkv, product(OpName::input_gradient),
                             product(OpName::weight_gradient), n, q + 2 * kv, h, true, ops, use);
    } else {
      linear_.push_gathered(product(OpName::qkv_gemm), n, q + 2 * kv, h, ops, use);
    }
    return;
  }
  const MlaShape& a = *basis_.model.mla;
  const std::int64_t q_width = std::int64_t{basis_.model.heads} * (a.nope_dim + a.rope_dim) / t;
  const std::int64_t kv_width = std::int64_t{basis_.model.heads} * (a.nope_dim + a.v_dim) / t;
  const std::int64_t q_rank = a.q_lora > 0 ? a.q_lora : h;
  const std::int64_t rows = n / t + (n % t != 0);
  // The down projections are small and replicated over TP; the up projections are column-parallel.
  if (backward) {
    casts_.push_quantize(WeightKind::qkv, n, kv_width + q_width, ops, use);
    linear_.push_gradients(WeightKind::qkv, n, kv_width, a.kv_lora, true, ops, use);
    linear_.push_gradients(WeightKind::qkv, n, q_width, q_rank, true, ops, use);
    linear_.push_replicated_gradients(WeightKind::qkv, rows, a.kv_lora + a.rope_dim, h, ops, use);
    if (a.q_lora > 0) linear_.push_replicated_gradients(WeightKind::qkv, rows, a.q_lora, h, ops, use);
    return;
  }
  if (a.q_lora > 0) linear_.push_replicated(rows, a.q_lora, h, ops, use);
  linear_.push_replicated(rows, a.kv_lora + a.rope_dim, h, ops, use);
  push_latent_expansion(n, ops, use);
}

// The up projections of multi-head latent attention.
void LayerOps::push_latent_expansion(std::int64_t n, OpList& ops, RangeUse& use) const {
  const MlaShape& a = *basis_.model.mla;
  const std::int64_t heads = basis_.model.heads / basis_.layout.tensor;
  linear_.push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.rope_dim),
                      a.q_lora > 0 ? a.q_lora : basis_.model.hidden, ops, use);
  linear_.push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.v_dim), a.kv_lora, ops, use);
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
  const std::int64_t t = basis_.layout.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(basis_.model.hidden) * basis_.element_bytes;
  before.push(rows_.norm(row_bytes, ElementwisePass::forward, use));
  casts_.push_weight_copies(false, before, use);
  casts_.push_input_cast(n, before, use);
  push_projections(n, false, before, use);
  before.push(rows_.rotary(n, documents, ElementwisePass::forward, use));

  const std::int64_t attended = std::int64_t{basis_.model.heads} * basis_.model.value_dim() / t;
  casts_.push_quantize(WeightKind::proj, n, attended, after, use, false);
  linear_.push_row(OpName::out_gemm, n, basis_.model.hidden, attended, after, use);
  after.push(kernels_.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  const std::size_t ffn = after.size();
  after.push(rows_.norm(row_bytes, ElementwisePass::forward, use));
  if (is_moe(kind))
    experts_.push(n, false, arriving, after, use);
  else
    casts_.push_input_cast(n, after, use), ffn_.push(n, basis_.model.ffn, false, after, use);
  after.mark_ffn(ffn);
  after.push(kernels_.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  if (!is_moe(kind)) mark_unneeded(after);
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
  const std::int64_t t = basis_.layout.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(basis_.model.hidden) * basis_.element_bytes;
  // What named recomputation repeats comes before the first op that needs it.
  const auto repeat_norm = [&](OpList& ops) {
    if (!basis_.layout.repeats(RecomputeModule::layernorm)) return;
    ops.push(rows_.norm(row_bytes, ElementwisePass::forward, use));
    ops.mark_again(ops.size() - 1);
  };
  repeat_norm(before);
  casts_.push_weight_copies(true, before, use);
  push_per_op(n, documents, before, use);
  const std::size_t first = before.size();
  const bool sparse = is_moe(kind);
  if (sparse && basis_.layout.repeats(RecomputeModule::moe))
    experts_.push(n, false, arriving, before, use);
  else if (sparse && basis_.layout.repeats(RecomputeModule::shared_experts) &&
           basis_.model.moe->shared_width() > 0)
    ffn_.push(n, basis_.model.moe->shared_width(), false, before, use);
  else if (!sparse && basis_.layout.repeats(RecomputeModule::mlp))
    ffn_.push(n, basis_.model.ffn, false, before, use);
  before.mark_again(first);
  if (sparse)
    experts_.push(n, true, arriving, before, use);
  else
    ffn_.push(n, basis_.model.ffn, true, before, use);
  before.mark_ffn(0);
  // Norm backward reads the gradient, the input and the kept output; its result joins the residual's
  // gradient.
  before.push(rows_.norm(row_bytes, ElementwisePass::backward, use));
  before.push(kernels_.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use,
                             ElementwisePass::backward));
  casts_.push_quantize(WeightKind::proj, casts_.cast_rows(n), basis_.model.hidden, before, use);
  linear_.push_gradients(WeightKind::proj, n, basis_.model.hidden,
                         std::int64_t{basis_.model.heads} * basis_.model.value_dim() / t, false, before, use);

  if (basis_.layout.repeats(RecomputeModule::mla_up_proj)) {
    const std::size_t expansion = before.size();
    push_latent_expansion(n, before, use);
    before.push(rows_.rotary(n, documents, ElementwisePass::forward, use));
    before.mark_again(expansion);
  }

  after.push(rows_.rotary(n, documents, ElementwisePass::backward, use));
  repeat_norm(after);
  push_projections(n, true, after, use);
  after.push(rows_.norm(row_bytes, ElementwisePass::backward, use));
  after.push(kernels_.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use,
                            ElementwisePass::backward));
}

// torchtitan's policy (torchtitan/parallelisms/parallelize_llama.py at 9dec370) keeps the outputs of
// attention, of reduce-scatters and of the 1st, 3rd, 5th and 7th product of a layer: Q, V, gate, down. So K,
// the output projection and up run again, the second not where a reduce-scatter's output stands for it, and
// everything between products.
void LayerOps::push_per_op(std::int64_t n, std::int64_t documents, OpList& ops, RangeUse& use) const {
  if (!basis_.layout.repeats(RecomputeModule::per_op)) return;
  const std::size_t first = ops.size();
  const std::int64_t t = basis_.layout.tensor, h = basis_.model.hidden, f = basis_.model.ffn / t;
  const std::int64_t kv = std::max<std::int64_t>(1, basis_.model.kv_heads / t) * basis_.model.head_dim;
  const double row_bytes = as_double(basis_.own_rows(n)) * as_double(h) * basis_.element_bytes;
  ops.push(rows_.norm(row_bytes, ElementwisePass::forward, use));
  casts_.push_input_cast(n, ops, use);
  linear_.push_column(OpName::qkv_gemm, n, kv, h, ops, use);
  ops.push(rows_.rotary(n, documents, ElementwisePass::forward, use));
  const std::int64_t attended = std::int64_t{basis_.model.heads} * basis_.model.value_dim() / t;
  casts_.push_quantize(WeightKind::proj, n, attended, ops, use, false);
  if (t == 1) linear_.push_row(OpName::out_gemm, n, h, attended, ops, use);
  ops.push(kernels_.moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  ops.push(rows_.norm(row_bytes, ElementwisePass::forward, use));
  casts_.push_input_cast(n, ops, use);
  if (basis_.model.gated_ffn) linear_.push_column(OpName::gate_up_gemm, n, f, h, ops, use);
  ops.push(rows_.activation(n, f, ElementwisePass::forward, use));
  casts_.push_quantize(WeightKind::fc2, n, f, ops, use);
  ops.mark_again(first);
}

// A checkpoint that is not reentrant ends its recomputation with the last tensor that the backward needs
// (torch.utils.checkpoint, set_checkpoint_early_stop), as torch.compile drops what nobody reads: that tensor
// is the input of the FFN's last product. torchao's backward casts it anyway.
void LayerOps::mark_unneeded(OpList& after) const {
  if (!basis_.framework.early_stop || basis_.model.training.adapts(WeightKind::fc2)) return;
  std::size_t needed = after.size();
  while (after.ops()[needed - 1].name != OpName::activation) --needed;
  if (after.ops()[needed].name == OpName::quantize && !basis_.casts_by_torchao()) ++needed;
  after.mark_once(needed);
}

}  // namespace equipoise
