#include "sim/cost/layer_costs.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "profiler/profile/attention.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {

// Matrix FLOPs of causal attention forward: 2 (d_qk + d_v) per head and pair; backward counts 2.5 times that.
static double attention_flops(const ModelShape& m, int tensor, std::span<const QueryKeys> pieces,
                              std::int64_t window) {
  double pairs = 0;
  for (const QueryKeys& p : pieces)
    pairs += window > 0 ? causal_pairs(as_double(p.queries), as_double(p.keys - p.queries), as_double(window))
                        : as_double(p.queries) * (as_double(p.keys) - 0.5 * as_double(p.queries - 1));
  return 2.0 * (m.head_dim + m.value_dim()) * (m.heads / tensor) * pairs;
}

// Tokens of a rank that sends as many as arrive: one without any is priced along it, so that the calls are of
// shapes that others make, too.
static std::int64_t tokens_like(const ExpertArrivals& arriving) {
  return std::max<std::int64_t>(1, std::llround(arriving.tokens));
}

// torch._scaled_mm is cuBLASLt's product with a scale a tensor, where the profile has its times apart.
static std::string_view scaled_mm_of(const Profile& profile, const Layout& layout,
                                     const FrameworkOptions& framework) {
  const bool scaled = framework.linear_layers != LinearLayers::fused && layout.precision == Precision::fp8;
  return scaled && profile.table("gemm").contains("fp8-static-scale") ? "static-scale" : "";
}

AttentionHeads attention_heads(const ModelShape& m, int tensor, int head_shares) {
  AttentionHeads heads;
  // MLA's Q and K are wider than its V: a kernel's work goes with the mean of the two.
  heads.head_dim = (m.head_dim + m.value_dim()) / 2;
  heads.query_heads = m.heads / tensor / head_shares;
  heads.kv_heads = std::max(1, m.kv_heads / tensor / head_shares);  // replicated beyond their number
  return heads;
}

LayerCosts::LayerCosts(const ModelShape& model, const Layout& layout, const Profile& profile,
                       const RankGrid& grid, NetworkRates network, FrameworkOptions framework)
    : model_(model),
      layer_counts_(model.layer_counts()),
      backward_counts_(model.backward_counts()),
      layout_(layout),
      framework_(framework),
      profile_(profile),
      grid_(grid),
      attention_(profile, attention_heads(model, layout.tensor, 1), framework.attention_kernel),
      gemm_(profile, layout.precision, scaled_mm_of(profile, layout, framework), framework.load),
      logits_gemm_(profile, Precision::bf16, {}, framework.load),
      elementwise_(profile, framework.own_kernels),
      collectives_(profile, network),
      tp_group_(grid.shape(Axis::tensor)) {
  for (int k = 0; k < kLayerKinds; ++k)
    if (slides(static_cast<LayerKind>(k))) sliding_share_ += as_double(layer_counts_[at(k)]) / model.all_layers();
  const auto add_shared = [&](int context) {
    const int shares = context_form(layout).head_shares(layout, context);
    if (shares > 1)
      shared_attention_.try_emplace(shares, profile, attention_heads(model, layout.tensor, shares),
                                    framework.attention_kernel);
  };
  add_shared(layout.context);  // any divisor of the heads; policies choose among powers of two
  for (int c = 2; c <= layout.inner_ranks(layout.context); ++c) add_shared(c);
  for (int c = 1; (model.heads / layout.tensor) % c == 0; c *= 2) add_shared(c);
  element_bytes_ = profile.device().element_bytes;
  kv_bytes_per_token_ = model.kv_width_of_rank(layout.tensor) * static_cast<std::int64_t>(element_bytes_);
  if (torch_ring()) kv_bytes_per_token_ *= model.heads / std::max(layout.tensor, model.kv_heads);
  launch_seconds_ = profile.device().launch_seconds;
  if (model.moe && !framework.expert_kernel.empty())
    expert_gemm_.emplace(profile, layout.precision, framework.expert_kernel, framework.load);
  if (framework.expert_capacity_factor > 0) framework_.host.waits_for_routes = false;  // no counts to read
  if (framework.seconds_per_op) framework_.host = {*framework.seconds_per_op, {}, framework.host.graphs};
  if (model.moe && framework.expert_capacity_factor == 0)
    router_load_ = router_load(router_spread(framework.expert_router), framework.expert_seed, layout.expert,
                               model.moe->experts / layout.expert);
  per_launch_ = to_picoseconds(framework_.host.seconds_per_launch);
  for (std::size_t sparse = 0; sparse < 2 && layout.activation_offload > 0; ++sparse)
    if (sparse == 0 || model.moe)
      offload_seconds_[sparse] = layout.activation_offload *
                                 kept_bytes(model, layout, framework_, sparse == 1) /
                                 (layout.host_link_GBps * 1e9);
}

Op LayerCosts::gemm(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use) const {
  const GemmRole role = name == OpName::input_gradient    ? GemmRole::input_gradient
                        : name == OpName::weight_gradient ? GemmRole::weight_gradient
                                                          : GemmRole::forward;
  Op op = grouped_gemm(name == OpName::logits_gemm ? logits_gemm_ : gemm_, name, role, 1, m, n, k, use);
  if (role == GemmRole::weight_gradient && framework_.gradient_add_bytes > 0 &&
      !layout_.reduces_each_micro_batch()) {
    const Op sum =
        moves(name, Elementwise::copy, framework_.gradient_add_bytes * as_double(m) * as_double(n), use);
    op.duration += sum.duration;
    op.bytes += sum.bytes;
  }
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
  return in_order(tp_collective(name, tokens, width, tp_group_, use), use);
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
// of the other pass (Transformer Engine's cast and transpose); frozen weights have no use for the second. Norms
// write FP8 themselves; weights are cast once a step.
void LayerCosts::push_quantize(WeightKind weights, std::int64_t rows, std::int64_t width, OpList& ops,
                               RangeUse& use, bool by_row_op) const {
  const double bytes = 2 + 1 + (model_.training.trains(weights) ? 1 : 0);  // of an element: read, written
  if (layout_.precision != Precision::fp8) return;
  if (casts_by_torchao()) return push_cast(as_double(rows) * as_double(width), by_row_op, ops, use);
  ops.push(moves(OpName::quantize, Elementwise::copy, bytes * as_double(rows) * as_double(width), use));
}

// Sequence parallelism: a column-parallel GEMM needs the whole sequence first (all-gather).
void LayerCosts::push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                             RangeUse& use) const {
  push_gathered(fused_products(name, m, {n}, k, use), m, n, k, ops, use);
}

void LayerCosts::push_gathered(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                               RangeUse& use) const {
  if (layout_.tensor > 1) {
    const bool of_layer = product.name != OpName::logits_gemm && product.name != OpName::mtp_projection;
    // An adapter reads what was gathered in bf16.
    Op gather = gather_cast(m, k, of_layer && (torch_layers() || !adapts(product.name)), use);
    if (overlaps_tp(of_layer)) fuse(gather, product, ops, use);
    ops.push(gather);
  }
  ops.push(product);
  push_adapter_of(product, m, n, k, true, ops, use);
}

// A row-parallel GEMM ends in a reduce-scatter of its output. Userbuffers (Transformer Engine, split_overlap_rs
// of comm_gemm_overlap.cpp) cut it in four: each is scattered under the next, which runs on the SMs that the
// scatter leaves, and nothing hides the last.
void LayerCosts::push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                          RangeUse& use) const {
  Op product = fused_products(name, m, {n}, k, use);
  if (layout_.tensor == 1) {
    ops.push(product);
  } else if (framework_.tp_overlap_forward) {
    Op scatter = tp_collective(OpName::tp_reduce_scatter, m, n, tp_group_, use);
    fuse(scatter, product, ops, use);
    constexpr int kPieces = 4;  // num_splits
    const bool in_pieces = !torch_layers() && framework_.tp_overlap_sms > 0;
    Op last = scatter;
    if (in_pieces) {
      last.with_next = false;
      last.launches = 0;  // a framework states them for the whole scatter
      last.duration /= kPieces;
      last.bytes /= kPieces;
      scatter.duration -= last.duration;
      scatter.bytes -= last.bytes;
      const int sms = profile_.device().sms;
      product.duration = product.duration * sms / std::max(1, sms - framework_.tp_overlap_sms);
      product.launches *= kPieces;
    }
    ops.push(scatter);
    ops.push(product);
    if (in_pieces) ops.push(last);
  } else {
    ops.push(product);
    ops.push(tp_collective(OpName::tp_reduce_scatter, m, n, use));
  }
  push_adapter_of(product, m, n, k, false, ops, use);
}

// A product that every TP rank does for its own tokens, with the whole weight.
void LayerCosts::push_replicated(std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                                 RangeUse& use) const {
  const Op product = gemm(OpName::mla_projection, m, n, k, use);
  ops.push(product);
  if (model_.training.adapts(WeightKind::qkv))
    push_adapter({m, m, n, k, 1, true, 1, tp_group_}, product.name, ops, use);
}

void LayerCosts::push_projections(std::int64_t n, bool backward, OpList& ops, RangeUse& use) const {
  const std::int64_t t = layout_.tensor;
  const std::int64_t h = model_.hidden;
  if (!model_.mla) {
    const std::int64_t q = std::int64_t{model_.heads} / t * model_.head_dim;
    const std::int64_t kv = std::max<std::int64_t>(1, model_.kv_heads / t) * model_.head_dim;
    const auto product = [&](OpName name) {
      return backward ? products(name, n, {q, kv, kv}, h, use) : fused_products(name, n, {q, kv, kv}, h, use);
    };
    if (backward) {
      push_quantize(WeightKind::qkv, n, q + 2 * kv, ops, use);
      push_gradients(WeightKind::qkv,
                     product(OpName::input_gradient), product(OpName::weight_gradient), n, q + 2 * kv, h, true,
                     ops, use);
    } else {
      push_gathered(product(OpName::qkv_gemm), n, q + 2 * kv, h, ops, use);
    }
    return;
  }
  const MlaShape& a = *model_.mla;
  const std::int64_t q_width = std::int64_t{model_.heads} * (a.nope_dim + a.rope_dim) / t;
  const std::int64_t kv_width = std::int64_t{model_.heads} * (a.nope_dim + a.v_dim) / t;
  const std::int64_t q_rank = a.q_lora > 0 ? a.q_lora : h;
  const std::int64_t rows = n / t + (n % t != 0);
  // The down projections are small and replicated over TP; the up projections are column-parallel.
  if (backward) {
    push_quantize(WeightKind::qkv, n, kv_width + q_width, ops, use);
    push_gradients(WeightKind::qkv, n, kv_width, a.kv_lora, true, ops, use);
    push_gradients(WeightKind::qkv, n, q_width, q_rank, true, ops, use);
    push_replicated_gradients(WeightKind::qkv, rows, a.kv_lora + a.rope_dim, h, ops, use);
    if (a.q_lora > 0) push_replicated_gradients(WeightKind::qkv, rows, a.q_lora, h, ops, use);
    return;
  }
  if (a.q_lora > 0) push_replicated(rows, a.q_lora, h, ops, use);
  push_replicated(rows, a.kv_lora + a.rope_dim, h, ops, use);
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

Op LayerCosts::activation(std::int64_t rows, std::int64_t f, ElementwisePass pass, RangeUse& use) const {
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  const bool unfused = model_.gated_ffn && (!framework_.fused_activation || framework_.linear_layers == LinearLayers::torch_eager);
  // Forward: the input, and the output. Unfused: silu(gate), and its product with up.
  // Backward: the output's gradient and the kept input, and the input's gradient. Unfused: three kernels that
  // read two and write one, and the gradients of gate and up put together.
  const bool forward = pass == ElementwisePass::forward;
  const std::int64_t fused_width = forward ? up + f : 2 * up + f;
  const std::int64_t width = unfused ? (forward ? 5 : 13) * f : fused_width;
  return moves(OpName::activation, Elementwise::swiglu, as_double(rows) * as_double(width) * element_bytes_,
               use, pass);
}

void LayerCosts::push_ffn_up(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                             RangeUse& use) const {
  const std::int64_t f = width / layout_.tensor;
  const std::int64_t up = (model_.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = model_.hidden;
  const auto product = [&](OpName name) {  // gate and up side by side in our own ranks, too
    const bool apart = model_.gated_ffn && !framework_.own_kernels;
    if (backward) return apart ? products(name, n, {f, f}, h, use) : products(name, n, {up}, h, use);
    return apart ? fused_products(name, n, {f, f}, h, use) : fused_products(name, n, {up}, h, use);
  };
  if (backward) {
    ops.push(activation(n, f, ElementwisePass::backward, use));
    push_quantize(WeightKind::fc1, n, up, ops, use);
    push_gradients(WeightKind::fc1, product(OpName::input_gradient), product(OpName::weight_gradient), n, up, h,
                   true, ops, use);
  } else {
    push_gathered(product(OpName::gate_up_gemm), n, up, h, ops, use);
    ops.push(activation(n, f, ElementwisePass::forward, use));
  }
}

void LayerCosts::push_ffn_down(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                               RangeUse& use) const {
  const std::int64_t f = width / layout_.tensor;
  push_quantize(WeightKind::fc2, backward ? cast_rows(n) : n, backward ? model_.hidden : f, ops, use);
  if (backward)
    push_gradients(WeightKind::fc2, n, model_.hidden, f, false, ops, use);
  else
    push_row(OpName::down_gemm, n, model_.hidden, f, ops, use);
}

void LayerCosts::push_dense_ffn(std::int64_t n, std::int64_t width, bool backward, OpList& ops,
                                RangeUse& use) const {
  if (backward) push_ffn_down(n, width, backward, ops, use);
  push_ffn_up(n, width, backward, ops, use);
  if (!backward) push_ffn_down(n, width, backward, ops, use);
}

void LayerCosts::forward_ops(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                             OpList& after, RangeUse& use, std::int64_t documents) const {
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
  before.push(norm(row_bytes, ElementwisePass::forward, use));
  push_weight_copies(false, before, use);
  push_input_cast(n, before, use);
  push_projections(n, false, before, use);
  before.push(rotary(n, documents, ElementwisePass::forward, use));

  const std::int64_t attended = std::int64_t{model_.heads} * model_.value_dim() / t;
  push_quantize(WeightKind::proj, n, attended, after, use, false);
  push_row(OpName::out_gemm, n, model_.hidden, attended, after, use);
  after.push(moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  const std::size_t ffn = after.size();
  after.push(norm(row_bytes, ElementwisePass::forward, use));
  if (is_moe(kind))
    push_moe(n, false, arriving, after, use);
  else
    push_input_cast(n, after, use), push_dense_ffn(n, model_.ffn, false, after, use);
  after.mark_ffn(ffn);
  after.push(moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  if (!is_moe(kind)) mark_unneeded(after);
}

void LayerCosts::backward_ops(LayerKind kind, std::int64_t n, const ExpertArrivals& arriving, OpList& before,
                              OpList& after, RangeUse& use, std::int64_t documents) const {
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
    ops.push(norm(row_bytes, ElementwisePass::forward, use));
    ops.mark_again(ops.size() - 1);
  };
  repeat_norm(before);
  push_weight_copies(true, before, use);
  push_per_op(n, documents, before, use);
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
  before.mark_ffn(0);
  // Norm backward reads the gradient, the input and the kept output; its result joins the residual's
  // gradient.
  before.push(norm(row_bytes, ElementwisePass::backward, use));
  before.push(
      moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use, ElementwisePass::backward));
  push_quantize(WeightKind::proj, cast_rows(n), model_.hidden, before, use);
  push_gradients(WeightKind::proj, n, model_.hidden, std::int64_t{model_.heads} * model_.value_dim() / t, false,
                 before, use);

  if (layout_.repeats(RecomputeModule::mla_up_proj)) {
    const std::size_t expansion = before.size();
    push_latent_expansion(n, before, use);
    before.push(rotary(n, documents, ElementwisePass::forward, use));
    before.mark_again(expansion);
  }

  after.push(rotary(n, documents, ElementwisePass::backward, use));
  repeat_norm(after);
  push_projections(n, true, after, use);
  after.push(norm(row_bytes, ElementwisePass::backward, use));
  after.push(
      moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use, ElementwisePass::backward));
}

// Forward and backward follow each other, so the lead that one leaves is the other's, unless the host waits
// for the GPU between them.
Picoseconds LayerCosts::host_stall(LayerKind kind, Issued pass, Issued before) const {
  const bool waits =
      (host().waits_at_hops && layout_.pipeline > 1) || (host().waits_for_routes && is_moe(kind));
  const int layers = std::max(1, layer_counts_[at(kind)] / layout_.pipeline);
  return stall_of(pass, per_launch_, waits ? 0 : lead_after(before, per_launch_, layers));
}

// ---- Attention, the ends of the model and pipeline hops ----

Picoseconds LayerCosts::attention_forward_time(const AttentionCall& call, RangeUse& use) const {
  return to_picoseconds(attention_.forward_seconds(call, use) * framework_.attention_slowdown);
}

Picoseconds LayerCosts::attention_forward_time(std::span<const QueryKeys> pieces, RangeUse& use,
                                               std::int64_t window) const {
  return to_picoseconds(attention_.forward_seconds(pieces, use, window) * framework_.attention_slowdown);
}

LayerCosts::AttentionTimes LayerCosts::attention_times(const AttentionCall& call, RangeUse& use,
                                                       int head_shares) const {
  const AttentionModel& model = attention_of(head_shares);
  return {to_picoseconds(model.forward_seconds(call, use) * framework_.attention_slowdown),
          to_picoseconds(model.backward_seconds(call, use) * framework_.attention_slowdown)};
}

LayerCosts::AttentionTimes LayerCosts::attention_times(std::span<const QueryKeys> pieces, RangeUse& use,
                                                       std::int64_t window, int head_shares) const {
  if (prices_counts()) return attention_times(count_call(pieces, window), use, head_shares);
  const AttentionModel& model = attention_of(head_shares);
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

Op LayerCosts::pipeline_send(std::int64_t tokens, int from_stage, int to_stage, RangeUse& use) const {
  Op op{OpName::pp_send, Stream::pp};
  op.bytes = as_double(tokens) * as_double(model_.hidden) / layout_.tensor * element_bytes_;
  op.duration = to_picoseconds(
      collectives_.seconds(Collective::send_recv, op.bytes, grid_.hop_shape(from_stage, to_stage), use));
  return op;
}

}  // namespace equipoise
