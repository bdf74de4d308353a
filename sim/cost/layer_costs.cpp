#include "sim/cost/layer_costs.h"

#include <algorithm>
#include <cmath>

#include "policies/base/index.h"

namespace equipoise {
AttentionHeads attention_heads(const ModelShape& m, int tensor, int context) {
  AttentionHeads heads;
  // MLA's Q and K are wider than its V: a kernel's work goes with the mean of the two.
  heads.head_dim = (m.head_dim + m.value_dim()) / 2;
  heads.query_heads = m.heads / tensor / context;
  heads.kv_heads = std::max(1, m.kv_heads / tensor / context);  // replicated beyond their number
  return heads;
}

LayerCosts::LayerCosts(const ModelShape& model, const Layout& layout, const Profile& profile,
                       const RankGrid& grid, NetworkRates network, FrameworkOptions framework)
    : model_(model),
      layer_counts_(model.layer_counts()),
      layout_(layout),
      framework_(framework),
      profile_(profile),
      grid_(grid),
      attention_(profile, attention_heads(model, layout.tensor, 1), framework.attention_kernel),
      gemm_(profile, layout.precision),
      logits_gemm_(profile, Precision::bf16),
      elementwise_(profile, framework.own_kernels),
      collectives_(profile, network),
      tp_group_(grid.shape(Axis::tensor)) {
  for (int k = 0; k < kLayerKinds; ++k)
    if (slides(static_cast<LayerKind>(k)))
      sliding_share_ += static_cast<double>(layer_counts_[at(k)]) / model.layers;
  if (layout.context_comm == ContextComm::ulysses) {
    const auto add = [&](int context) {
      ulysses_attention_.try_emplace(context, profile, attention_heads(model, layout.tensor, context),
                                     framework.attention_kernel);
    };
    add(layout.context);  // any divisor of the heads; policies choose among powers of two
    for (int c = 1; (model.heads / layout.tensor) % c == 0; c *= 2) add(c);
  }
  const std::int64_t kv_width =
      model.mla ? model.kv_width() / layout.tensor
                : 2 * std::int64_t{std::max(1, model.kv_heads / layout.tensor)} * model.head_dim;
  element_bytes_ = profile.device().element_bytes;
  kv_bytes_per_token_ = kv_width * static_cast<std::int64_t>(element_bytes_);
  launch_seconds_ = profile.device().launch_seconds;
  framework_per_op_ =
      to_picoseconds(framework.seconds_per_op.value_or(profile.device().framework_seconds_per_op));
}

Op LayerCosts::gemm(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use) const {
  const GemmRole role = name == OpName::input_gradient    ? GemmRole::input_gradient
                        : name == OpName::weight_gradient ? GemmRole::weight_gradient
                                                          : GemmRole::forward;
  return grouped_gemm(name, role, 1, m, n, k, use);
}

Op LayerCosts::grouped_gemm(OpName name, GemmRole role, std::int64_t groups, std::int64_t m, std::int64_t n,
                            std::int64_t k, RangeUse& use, double output_bytes) const {
  const GemmModel& model = name == OpName::logits_gemm ? logits_gemm_ : gemm_;
  Op op{name, Stream::compute};
  op.duration =
      to_picoseconds(model.seconds(m, n, k, use, role, groups, output_bytes) * framework_.gemm_slowdown);
  op.flops = 2.0 * as_double(groups) * as_double(m) * as_double(n) * as_double(k);
  op.bytes = element_bytes_ * as_double(groups) *
             (as_double(m) * as_double(k) + as_double(k) * as_double(n) + as_double(m) * as_double(n));
  return op;
}

Op LayerCosts::moves(OpName name, Elementwise kind, double bytes, RangeUse& use, ElementwisePass pass) const {
  Op op{name, Stream::compute};
  op.duration =
      to_picoseconds(elementwise_.seconds(kind, bytes, use, pass) * framework_.elementwise_slowdown);
  op.bytes = bytes;
  return op;
}

Op LayerCosts::tp_collective(OpName name, std::int64_t tokens, std::int64_t width, RangeUse& use) const {
  return tp_collective(name, tokens, width, tp_group_, use);
}

Op LayerCosts::tp_collective(OpName name, std::int64_t tokens, std::int64_t width, GroupShape group,
                             RangeUse& use) const {
  const Collective kind = name == OpName::tp_all_gather ? Collective::all_gather : Collective::reduce_scatter;
  Op op{name, Stream::tp};
  op.bytes = element_bytes_ * as_double(tokens) * as_double(width);
  op.duration = to_picoseconds(collectives_.seconds(kind, op.bytes, group, use));
  return op;
}

// FP8: an operand of a product is cast from bf16 and written in both orders, for this product and for the one
// of the other pass (Transformer Engine's cast and transpose). Norms write FP8 themselves; weights are cast
// once a step.
void LayerCosts::push_quantize(std::int64_t rows, std::int64_t width, OpList& ops, RangeUse& use) const {
  constexpr double kBytes = 2 + 1 + 1;  // of an element: read, written twice
  if (layout_.precision != Precision::fp8) return;
  ops.push(moves(OpName::quantize, Elementwise::copy, kBytes * as_double(rows) * as_double(width), use));
}

// Sequence parallelism: a column-parallel GEMM needs the whole sequence first (all-gather).
void LayerCosts::push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                             RangeUse& use) const {
  push_gathered(gemm(name, m, n, k, use), m, k, ops, use);
}

void LayerCosts::push_gathered(const Op& product, std::int64_t m, std::int64_t k, OpList& ops,
                               RangeUse& use) const {
  if (layout_.tensor > 1) {
    Op gather = tp_collective(OpName::tp_all_gather, m, k, use);
    gather.with_next = framework_.tp_overlap_forward;
    ops.push(gather);
  }
  ops.push(product);
}

// A row-parallel GEMM ends in a reduce-scatter of its output.
void LayerCosts::push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                          RangeUse& use) const {
  if (layout_.tensor == 1) {
    ops.push(gemm(name, m, n, k, use));
    return;
  }
  Op scatter = tp_collective(OpName::tp_reduce_scatter, m, n, use);
  if (framework_.tp_overlap_forward) {
    scatter.with_next = true;
    ops.push(scatter);
    ops.push(gemm(name, m, n, k, use));
  } else {
    ops.push(gemm(name, m, n, k, use));
    ops.push(scatter);
  }
}

// Gradients of a GEMM whose forward was m x n x k. Column-parallel: Megatron gathers the input again under
// the input-gradient GEMM and reduce-scatters that gradient under the weight-gradient GEMM. Row-parallel: the
// output's gradient is gathered first, exposed.
void LayerCosts::push_gradients(std::int64_t m, std::int64_t n, std::int64_t k, bool column, OpList& ops,
                                RangeUse& use) const {
  push_gradients(gemm(OpName::input_gradient, m, k, n, use), gemm(OpName::weight_gradient, k, n, m, use), m,
                 n, k, column, ops, use);
}

void LayerCosts::push_gradients(const Op& input, const Op& weight, std::int64_t m, std::int64_t n,
                                std::int64_t k, bool column, OpList& ops, RangeUse& use) const {
  if (layout_.tensor == 1) {
    ops.push(input);
    ops.push(weight);
    return;
  }
  if (column) {
    Op gather = tp_collective(OpName::tp_all_gather, m, k, use);
    Op scatter = tp_collective(OpName::tp_reduce_scatter, m, k, use);
    gather.with_next = scatter.with_next = true;
    ops.push(gather);
    ops.push(input);
    ops.push(scatter);
    ops.push(weight);
  } else {
    Op gather = tp_collective(OpName::tp_all_gather, m, n, use);
    gather.with_next = framework_.tp_overlap_forward;
    ops.push(gather);
    ops.push(input);
    ops.push(weight);
  }
}

void LayerCosts::push_projections(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor;
  const std::int64_t h = model_.hidden;
  if (!model_.mla) {
    const std::int64_t q = std::int64_t{model_.heads} / t * model_.head_dim;
    const std::int64_t kv = std::max<std::int64_t>(1, model_.kv_heads / t) * model_.head_dim;
    // One product, or, in our own ranks, one each.
    const auto product = [&](auto&& of_width) {
      if (!framework_.own_kernels) return of_width(q + 2 * kv);
      Op sum = of_width(q);
      const Op one = of_width(kv);
      sum.duration += 2 * one.duration;
      sum.flops += 2 * one.flops;
      sum.bytes += 2 * one.bytes;
      return sum;
    };
    if (backward) {
      push_quantize(n, q + 2 * kv, ops, use);
      push_gradients(product([&](std::int64_t w) { return gemm(OpName::input_gradient, n, h, w, use); }),
                     product([&](std::int64_t w) { return gemm(OpName::weight_gradient, h, w, n, use); }), n,
                     q + 2 * kv, h, true, ops, use);
    } else {
      push_gathered(product([&](std::int64_t w) { return gemm(OpName::qkv_gemm, n, w, h, use); }), n, h, ops,
                    use);
    }
    return;
  }
  const MlaShape& a = *model_.mla;
  const std::int64_t q_width = std::int64_t{model_.heads} * (a.nope_dim + a.rope_dim) / t;
  const std::int64_t kv_width = std::int64_t{model_.heads} * (a.nope_dim + a.v_dim) / t;
  const std::int64_t q_rank = a.q_lora > 0 ? a.q_lora : h;
  // The down projections are small and replicated over TP; the up projections are column-parallel.
  if (backward) {
    push_quantize(n, kv_width + q_width, ops, use);
    push_gradients(n, kv_width, a.kv_lora, true, ops, use);
    push_gradients(n, q_width, q_rank, true, ops, use);
    ops.push(gemm(OpName::input_gradient, n / t + (n % t != 0), h, a.kv_lora + a.rope_dim, use));
    ops.push(gemm(OpName::weight_gradient, h, a.kv_lora + a.rope_dim, n / t + (n % t != 0), use));
    if (a.q_lora > 0) {
      ops.push(gemm(OpName::input_gradient, n / t + (n % t != 0), h, a.q_lora, use));
      ops.push(gemm(OpName::weight_gradient, h, a.q_lora, n / t + (n % t != 0), use));
    }
    return;
  }
  if (a.q_lora > 0) ops.push(gemm(OpName::mla_projection, n / t + (n % t != 0), a.q_lora, h, use));
  ops.push(gemm(OpName::mla_projection, n / t + (n % t != 0), a.kv_lora + a.rope_dim, h, use));
  push_latent_expansion(n, ops, use);
}

// The up projections of multi-head latent attention.
void LayerCosts::push_latent_expansion(std::int64_t n, OpList& ops, RangeUse& use) const {
  const MlaShape& a = *model_.mla;
  const std::int64_t heads = model_.heads / layout_.tensor;
  push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.rope_dim), a.q_lora > 0 ? a.q_lora : model_.hidden,
              ops, use);
  push_column(OpName::qkv_gemm, n, heads * (a.nope_dim + a.v_dim), a.kv_lora, ops, use);
}

Op LayerCosts::rotary(std::int64_t n, ElementwisePass pass, RangeUse& use) const {
  const int t = layout_.tensor;
  const double rotated =
      as_double(n) * as_double(model_.heads / t + std::max(1, model_.kv_heads / t)) * model_.head_dim;
  return moves(OpName::rope, Elementwise::rope, 2 * rotated * element_bytes_, use, pass);
}

void LayerCosts::push_ffn_up(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                             RangeUse& use) const {
  const std::int64_t f = width / layout_.tensor;
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  if (backward) {
    // Reads the output's gradient and the kept input, writes the input's gradient.
    ops.push(moves(OpName::activation, Elementwise::swiglu,
                   as_double(n) * as_double(2 * up + f) * element_bytes_, use, ElementwisePass::backward));
    push_quantize(n, up, ops, use);
    push_gradients(n, up, model_.hidden, true, ops, use);
  } else {
    push_column(OpName::gate_up_gemm, n, up, model_.hidden, ops, use);
    ops.push(moves(OpName::activation, Elementwise::swiglu, as_double(n) * as_double(up + f) * element_bytes_,
                   use));
  }
}

void LayerCosts::push_ffn_down(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                               RangeUse& use) const {
  const std::int64_t f = width / layout_.tensor;
  push_quantize(n, backward ? model_.hidden : f, ops, use);
  if (backward)
    push_gradients(n, model_.hidden, f, false, ops, use);
  else
    push_row(OpName::down_gemm, n, model_.hidden, f, ops, use);
}

void LayerCosts::push_dense_ffn(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                                RangeUse& use) const {
  if (backward) push_ffn_down(n, width, backward, ops, use);
  push_ffn_up(n, width, backward, ops, use);
  if (!backward) push_ffn_down(n, width, backward, ops, use);
}

namespace {

// Tokens of a rank that sends as many as arrive: one without any is priced along it, so that the calls are of
// shapes that others make, too.
std::int64_t tokens_like(const ExpertArrivals& arriving) {
  return std::max<std::int64_t>(1, std::llround(arriving.tokens));
}

}  // namespace

void LayerCosts::forward_ops(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                             OpList& after, RangeUse& use) const {
  before.clear();
  after.clear();
  if (n == 0) {
    if (!is_moe(kind) || arriving.tokens == 0) return;
    forward_ops(kind, tokens_like(arriving), arriving, before, after, use);
    before.clear();
    after.keep_arrived();
    return;
  }
  const std::int64_t t = layout_.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(model_.hidden) * element_bytes_;
  before.push(moves(OpName::rms_norm, Elementwise::rms_norm, 2 * row_bytes, use));
  push_projections(n, false, before, use);
  before.push(rotary(n, ElementwisePass::forward, use));

  const std::int64_t attended = std::int64_t{model_.heads} * model_.value_dim() / t;
  push_quantize(n, attended, after, use);
  push_row(OpName::out_gemm, n, model_.hidden, attended, after, use);
  after.push(moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  after.push(moves(OpName::rms_norm, Elementwise::rms_norm, 2 * row_bytes, use));
  if (is_moe(kind))
    push_moe(n, false, arriving, after, use);
  else
    push_dense_ffn(n, model_.ffn, false, after, use);
  after.push(moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
}

void LayerCosts::backward_ops(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                              OpList& after, RangeUse& use) const {
  before.clear();
  after.clear();
  if (n == 0) {
    if (!is_moe(kind) || arriving.tokens == 0) return;
    backward_ops(kind, tokens_like(arriving), arriving, before, after, use);
    after.clear();
    before.keep_arrived();
    return;
  }
  const std::int64_t t = layout_.tensor;
  const double row_bytes = as_double((n + t - 1) / t) * as_double(model_.hidden) * element_bytes_;
  // What named recomputation repeats stands before the first op that needs it.
  const auto repeat_norm = [&](OpList& ops) {
    if (!layout_.repeats(RecomputeModule::layernorm)) return;
    ops.push(moves(OpName::rms_norm, Elementwise::rms_norm, 2 * row_bytes, use));
    ops.mark_again(ops.size() - 1);
  };
  repeat_norm(before);
  const std::size_t first = before.size();
  const bool sparse = is_moe(kind);
  if (sparse && layout_.repeats(RecomputeModule::moe))
    push_moe(n, false, arriving, before, use);
  else if (sparse && layout_.repeats(RecomputeModule::shared_experts) && model_.moe->shared_width() > 0)
    push_dense_ffn(n, model_.moe->shared_width(), false, before, use);
  else if (!sparse && layout_.repeats(RecomputeModule::mlp))
    push_dense_ffn(n, model_.ffn, false, before, use);
  before.mark_again(first);
  if (sparse)
    push_moe(n, true, arriving, before, use);
  else
    push_dense_ffn(n, model_.ffn, true, before, use);
  // Norm backward reads the gradient, the input and the kept output; its result joins the residual's
  // gradient.
  before.push(moves(OpName::rms_norm, Elementwise::rms_norm, row_elements(3, 4) * row_bytes, use,
                    ElementwisePass::backward));
  before.push(
      moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use, ElementwisePass::backward));
  push_quantize(n, model_.hidden, before, use);
  push_gradients(n, model_.hidden, std::int64_t{model_.heads} * model_.value_dim() / t, false, before, use);

  if (layout_.repeats(RecomputeModule::mla_up_proj)) {
    const std::size_t expansion = before.size();
    push_latent_expansion(n, before, use);
    before.push(rotary(n, ElementwisePass::forward, use));
    before.mark_again(expansion);
  }

  after.push(rotary(n, ElementwisePass::backward, use));
  repeat_norm(after);
  push_projections(n, true, after, use);
  after.push(moves(OpName::rms_norm, Elementwise::rms_norm, row_elements(3, 4) * row_bytes, use,
                   ElementwisePass::backward));
  after.push(
      moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use, ElementwisePass::backward));
}

Picoseconds LayerCosts::host_stall(std::size_t launches, Picoseconds busy) const {
  return std::max<Picoseconds>(0, static_cast<Picoseconds>(launches) * framework_per_op_ - busy);
}

}  // namespace equipoise
