// Linear layers as PyTorch and torchao run them, and torchtitan's recomputation by operator.
//
// Q, K, V, gate and up are a product each. With tensor parallelism (DTensor) the gathered input of a product
// is kept. tp_overlap stands for asynchronous TP, which fuses a gather with the products behind it and a
// reduce-scatter with the one product before it (torch/_inductor/fx_passes/micro_pipeline_tp.py): not that of
// an input's gradient, which is the sum of two or three, nor what is not compiled, embedding and head. Each
// rank's rows are then a product of their own, beside the copy of the next
// (torch/distributed/_symmetric_memory). Sequences are cut along their second dimension, so that what NCCL
// gathers or scatters is copied into order (torch.distributed._functional_collectives). FSDP2 copies what it
// has gathered out of its buffer (foreach_all_gather_copy_out). In FP8 (torchao's Float8Linear, one scale a
// tensor from its largest value) every operand is cast by a kernel that reads bf16 and writes both orders,
// and reads one of them again, as torch.compile has it; the largest value takes a read of its own where no
// row op has made the tensor. So counts torchao's own roofline model (torchao/float8/roofline_utils.py at
// eab345c). Q, K and V share a cast, as gate and up do. Weights are cast in every forward. What is gathered
// over TP is cast before and travels in one byte.

#include <algorithm>
#include <array>
#include <vector>

#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
namespace {

constexpr double kCast = 2 + 2 + 1;   // bytes of an element: read in bf16, written twice, read in FP8
constexpr double kLargest = 2;        // read for its largest value
constexpr double kTranspose = 1 + 1;  // of FP8 that was gathered in one order
constexpr double kCopyOut = 2 + 2;    // of a weight that FSDP has gathered
constexpr int kBarriers = 3;          // of asynchronous TP that no piece of a product runs beside

// Elements of bf16 that torchtitan's RMSNorm (torchtitan/models/norms.py) moves kernel by kernel. Forward: to fp32
// (3), square (4), mean (2), product (4), to bf16 (3), weight (2). Backward, by PyTorch's derivatives: weight (2) and
// its gradient (4), to fp32 (3), products (4 + 6) and sum (2), mean (2), square (14), sum of both (6), to bf16 (3).
struct Elements {
  double forward, backward;
};
constexpr Elements kEagerNorm{18, 46};

}  // namespace

Op LayerCosts::norm(double row_bytes, ElementwisePass pass, RangeUse& use) const {
  const bool forward = pass == ElementwisePass::forward;
  const double usual = forward ? 2 : row_elements(3, 4);
  const double width = framework_.linear_layers != LinearLayers::torch_eager ? usual
                       : forward                                            ? kEagerNorm.forward
                                                                            : kEagerNorm.backward;
  return moves(OpName::rms_norm, Elementwise::rms_norm, width * row_bytes, use, pass);
}

Op LayerCosts::in_order(Op collective, RangeUse& use) const {
  if (torch_layers() && layout_.tensor > 1)
    collective.duration += moves(collective.name, Elementwise::copy, 2 * collective.bytes, use).duration;
  return collective;
}

Op LayerCosts::fused_products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                              std::int64_t k, RangeUse& use) const {
  const bool pieces = torch_layers() && layout_.tensor > 1 && overlaps_tp(name != OpName::logits_gemm);
  Op op = products(name, pieces ? own_rows(m) : m, widths, k, use);
  if (!pieces) return op;
  op.duration *= layout_.tensor;
  op.launches *= static_cast<std::uint32_t>(layout_.tensor);
  op.flops *= layout_.tensor;
  op.bytes *= layout_.tensor;
  return op;
}

// Of asynchronous TP nothing hides the first piece of the product that waits for a copy, or the last copy
// that waits for a piece; a rank's own part on its way to where others read it; barriers; nor the sum of what
// came in.
void LayerCosts::fuse(Op& collective, const Op& product, OpList& ops, RangeUse& use) const {
  collective.with_next = true;
  if (!torch_layers()) return;
  const bool gathers = collective.name == OpName::tp_all_gather;
  const double parts = layout_.tensor;
  collective.duration += product.duration / layout_.tensor;
  Op apart = moves(OpName::permute, Elementwise::copy,
                   collective.bytes * (gathers ? 2 / parts : 1 + 1 / parts), use);
  apart.launches += kBarriers;
  apart.duration += kBarriers * moves(OpName::permute, Elementwise::copy, 1, use).duration;
  ops.push(apart);
}

void LayerCosts::push_cast(double elements, bool made_by_row_op, OpList& ops, RangeUse& use) const {
  ops.push(moves(OpName::quantize, Elementwise::copy, (kCast + (made_by_row_op ? 0 : kLargest)) * elements, use));
}

// Of a norm's output, before it is gathered.
void LayerCosts::push_input_cast(std::int64_t n, OpList& ops, RangeUse& use) const {
  if (casts_by_torchao()) push_cast(as_double(own_rows(n)) * as_double(model_.hidden), true, ops, use);
}

// Weights of a dense layer. A forward makes both orders, unless FSDP has gathered them in FP8: then a backward
// makes the other one. Recomputation by operator keeps the largest values, and casts again.
void LayerCosts::push_weight_copies(bool backward, OpList& ops, RangeUse& use) const {
  if (!torch_layers() || model_.mla || model_.moe) return;
  const double attention = as_double(model_.heads) * (model_.head_dim + model_.value_dim()) +
                           2 * as_double(model_.kv_heads) * model_.head_dim;
  const double ffn = (model_.gated_ffn ? 3 : 2) * as_double(model_.ffn);
  const double weights = as_double(model_.hidden) * (attention + ffn) / layout_.tensor;
  const double of_gathered = gathers_fp8_parameters() ? kCopyOut / 2 : kCopyOut;
  if (layout_.zero == 3) {
    ops.push(moves(OpName::permute, Elementwise::copy, of_gathered * weights, use));
    if (!backward) ops.mark_once(ops.size() - 1);  // a recomputed forward finds the backward's
  }
  if (!casts_by_torchao()) return;
  if (gathers_fp8_parameters()) {
    if (backward) ops.push(moves(OpName::quantize, Elementwise::copy, kTranspose * weights, use));
  } else if (!backward || layout_.repeats(RecomputeModule::per_op)) {
    push_cast(weights, backward, ops, use);
  }
}

Op LayerCosts::products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths, std::int64_t k,
                        RangeUse& use) const {
  const auto of_width = [&](std::int64_t width) {
    if (name == OpName::input_gradient) return gemm(name, m, k, width, use);
    return name == OpName::weight_gradient ? gemm(name, k, width, m, use) : gemm(name, m, width, k, use);
  };
  const bool apart = framework_.own_kernels || torch_layers();
  if (!apart) return of_width(sum_of(widths));
  Op sum = of_width(*widths.begin());
  for (const auto* width = widths.begin() + 1; width != widths.end(); ++width) {
    const Op one = of_width(*width);
    sum.duration += one.duration;
    sum.flops += one.flops;
    sum.bytes += one.bytes;
  }
  return sum;
}

Op LayerCosts::gather_cast(std::int64_t tokens, std::int64_t width, bool is_cast, RangeUse& use) const {
  Op op{OpName::tp_all_gather, Stream::tp};
  op.bytes = (is_cast && layout_.precision == Precision::fp8 ? 1 : element_bytes_) * as_double(tokens) *
             as_double(width);
  op.duration = to_picoseconds(collectives_.seconds(Collective::all_gather, op.bytes, tp_group_, use));
  return overlaps_tp(is_cast) ? op : in_order(op, use);
}

// torchtitan's policy (torchtitan/parallelisms/parallelize_llama.py at 9dec370) keeps the outputs of attention, of
// reduce-scatters and of the 1st, 3rd, 5th and 7th product of a layer: Q, V, gate, down. So K, the output
// projection and up run again, the second not where a reduce-scatter's output stands for it, and everything
// between products.
void LayerCosts::push_per_op(std::int64_t n, std::int64_t documents, OpList& ops, RangeUse& use) const {
  if (!layout_.repeats(RecomputeModule::per_op)) return;
  const std::size_t first = ops.size();
  const std::int64_t t = layout_.tensor, h = model_.hidden, f = model_.ffn / t;
  const std::int64_t kv = std::max<std::int64_t>(1, model_.kv_heads / t) * model_.head_dim;
  const double row_bytes = as_double(own_rows(n)) * as_double(h) * element_bytes_;
  ops.push(norm(row_bytes, ElementwisePass::forward, use));
  push_input_cast(n, ops, use);
  push_column(OpName::qkv_gemm, n, kv, h, ops, use);
  ops.push(rotary(n, documents, ElementwisePass::forward, use));
  const std::int64_t attended = std::int64_t{model_.heads} * model_.value_dim() / t;
  push_quantize(WeightKind::proj, n, attended, ops, use, false);
  if (t == 1) push_row(OpName::out_gemm, n, h, attended, ops, use);
  ops.push(moves(OpName::residual, Elementwise::residual_add, 3 * row_bytes, use));
  ops.push(norm(row_bytes, ElementwisePass::forward, use));
  push_input_cast(n, ops, use);
  if (model_.gated_ffn) push_column(OpName::gate_up_gemm, n, f, h, ops, use);
  ops.push(activation(n, f, ElementwisePass::forward, use));
  push_quantize(WeightKind::fc2, n, f, ops, use);
  ops.mark_again(first);
}

// A checkpoint that is not reentrant ends its recomputation with the last tensor that the backward needs
// (torch.utils.checkpoint, set_checkpoint_early_stop), as torch.compile drops what nobody reads: that tensor
// is the input of the FFN's last product. torchao's backward casts it anyway.
void LayerCosts::mark_unneeded(OpList& after) const {
  if (!framework_.early_stop || model_.training.adapts(WeightKind::fc2)) return;
  std::size_t needed = after.size();
  while (after.ops()[needed - 1].name != OpName::activation) --needed;
  if (after.ops()[needed].name == OpName::quantize && !casts_by_torchao()) ++needed;
  after.mark_once(needed);
}

// --- Rotary embedding of a layer's Q and K: one kernel, or PyTorch's own ones, which Megatron-core runs document
// by document.

namespace {

// Kernels of Q or of K in Megatron-core 0.12's unfused RoPE of packed documents (_apply_rotary_pos_emb_thd of
// rope_utils.py), forward and backward, the latter by PyTorch's derivatives.
// A document's: cosine, its product with a scale and its cast, the same of the sine; half of each head negated,
// the halves put together, two products, their sum, a concatenation with what is not rotated. Backward: two
// products, the negation, the halves put together, both added; zeros for what is not rotated, added to them.
constexpr std::int64_t kOfDocument[] = {12, 7};
// Once: lengths from ends in two kernels, their copy to the host, all documents put together; backward: that.
constexpr std::int64_t kOnce[] = {4, 1};

}  // namespace

Op LayerCosts::rotary(std::int64_t n, std::int64_t documents, ElementwisePass pass, RangeUse& use) const {
  const int t = layout_.tensor;
  const double heads = as_double(model_.heads / t + std::max(1, model_.kv_heads / t));
  const double of_head = as_double(n) * model_.head_dim;
  const double elements = of_head * heads * element_bytes_;
  if (torch_layers()) {
    // Queries and keys: read and written, or to fp32 (3), a complex product (4) and back (3). Keys and values are
    // repeated for all query heads, or what is summed up of their gradients is.
    const double repeated = model_.kv_heads < model_.heads ? 2 * elements : 0;
    const double rotated = (framework_.linear_layers == LinearLayers::torch_eager ? 10 : 2) * elements;
    return moves(OpName::rope, Elementwise::rope, rotated + repeated, use, pass);
  }
  if (framework_.fused_rope) return moves(OpName::rope, Elementwise::rope, 2 * elements, use, pass);
  // Read and written: half of it negated, the halves put together (2), two products (4), their sum (3), two
  // concatenations (4). Cosine and sine of the angles in fp32, scaled and then cast, for queries and for keys.
  // Backward: two products (4), half negated, put together twice (4), zeros, two sums (6).
  const bool forward = pass == ElementwisePass::forward;
  const double angles = of_head * 2 * 2 * (5 * kFp32Bytes + element_bytes_);
  Op op = moves(OpName::rope, Elementwise::rope, forward ? 14 * elements + angles : 16 * elements, use, pass);
  const std::int64_t kernels = 2 * (kOnce[at(pass)] + documents * kOfDocument[at(pass)]);
  RangeUse unused;
  const double least = elementwise_.seconds(Elementwise::rope, 1, unused, pass);  // whatever it moves
  op.duration += to_picoseconds(as_double(kernels - 1) * least * framework_.elementwise_slowdown);
  if (!framework_.seconds_per_op) op.kernels = static_cast<std::uint32_t>(kernels);
  return op;
}

void LayerCosts::held(const MicroBatch& micro_batch, const Sharding& sharding,
                      std::vector<HeldByHalf>& out) const {
  const int ranks = sharding.ranks();
  const bool halves = layout_.nano_batches_of(ranks) == 2;
  const NanoCut cut = halves ? nano_cut(micro_batch, ranks) : NanoCut{};
  out.assign(at(ranks), {});
  for (int r = 0; r < ranks; ++r) {
    HeldByHalf& held = out[at(r)];
    const std::span<const Segment> segments = sharding.of_rank(r);
    held[0].tokens = halves ? cut.tokens_before(segments) : sharding.rank_tokens[at(r)];
    held[1].tokens = sharding.rank_tokens[at(r)] - held[0].tokens;
    if (framework_.fused_rope) continue;
    thread_local std::array<std::vector<std::int32_t>, kMostNanoBatches> slices;
    for (auto& of_half : slices) of_half.clear();
    for (const Segment& s : segments) slices[halves && cut.behind(s) ? 1 : 0].push_back(s.slice);
    for (std::size_t half = 0; half < slices.size(); ++half) {
      auto& of_half = slices[half];
      std::sort(of_half.begin(), of_half.end());  // a document's two chunks lie apart
      held[half].documents =
          std::max<std::int64_t>(1, std::unique(of_half.begin(), of_half.end()) - of_half.begin());
    }
  }
}

}  // namespace equipoise
