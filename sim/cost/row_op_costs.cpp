#include "sim/cost/row_op_costs.h"

#include "policies/base/index.h"

namespace equipoise {

namespace {

// Kernels of Q or of K in Megatron-core's unfused RoPE (rope_utils.py), 0.12 to August 2026, forward and
// backward, the latter by PyTorch's derivatives.
// A batch's (_apply_rotary_pos_emb_bshd), or those of each packed document (_apply_rotary_pos_emb_thd):
// cosine, its product with a scale and its cast, the same of the sine; half of each head negated, the halves
// put together, two products, their sum, a concatenation with what is not rotated. Backward: two products,
// the negation, the halves put together, both added; zeros for what is not rotated, added to them.
constexpr std::int64_t kOfDocument[] = {12, 7};
// Once per call with packed documents: lengths from ends in two kernels, their copy to the host, and the
// concatenation of all documents; the backward repeats the last.
constexpr std::int64_t kOnce[] = {4, 1};

}  // namespace

Op RowOpCosts::norm(double row_bytes, ElementwisePass pass, RangeUse& use) const {
  const Norm& norm = norm_of(basis.model.norm);
  const NormTraffic& traffic = basis.framework.linear_layers == LinearLayers::torch_eager ? norm.eager
                               : basis.framework.own_kernels                              ? norm.own
                                                                                          : norm.fused;
  const double width = pass == ElementwisePass::forward ? traffic.forward : traffic.backward;
  return kernels.moves(OpName::rms_norm, Elementwise::rms_norm, width * row_bytes, use, pass);
}

Op RowOpCosts::rotary(std::int64_t n, std::int64_t documents, ElementwisePass pass, RangeUse& use) const {
  const int t = basis.layout.tensor;
  const double heads = as_double(basis.model.heads / t + std::max(1, basis.model.kv_heads / t));
  const double of_head = as_double(n) * basis.model.head_dim;
  const double elements = of_head * heads * basis.element_bytes;
  if (basis.torch_layers()) {
    // Queries and keys: read and written, or to fp32 (3), a complex product (4) and back (3). Keys and values
    // are repeated for all query heads; in the backward their gradients are summed up.
    const double repeated = basis.model.kv_heads < basis.model.heads ? 2 * elements : 0;
    const double rotated = (basis.framework.linear_layers == LinearLayers::torch_eager ? 10 : 2) * elements;
    return kernels.moves(OpName::rope, Elementwise::rope, rotated + repeated, use, pass);
  }
  if (basis.framework.fused_rope)
    return kernels.moves(OpName::rope, Elementwise::rope, 2 * elements, use, pass);
  // Read and written: half of it negated, the halves concatenated (2), two products (4), their sum (3), two
  // concatenations (4). Cosine and sine of the angles in fp32 are scaled and then cast, for queries and for
  // keys. Backward: two products (4), half negated, two concatenations (4), zeros, two sums (6).
  const bool forward = pass == ElementwisePass::forward;
  const double angles = of_head * 2 * 2 * (5 * kFp32Bytes + basis.element_bytes);
  Op op = kernels.moves(OpName::rope, Elementwise::rope, forward ? 14 * elements + angles : 16 * elements,
                        use, pass);
  const bool packed = basis.framework.rope_by_document;
  const std::int64_t launched =
      2 * (packed ? kOnce[at(pass)] + documents * kOfDocument[at(pass)] : kOfDocument[at(pass)]);
  RangeUse unused;
  const double least =
      kernels.elementwise().seconds(Elementwise::rope, 1, unused, pass);  // the time of a kernel that moves
                                                                          // almost nothing
  op.duration += to_picoseconds(as_double(launched - 1) * least * basis.framework.elementwise_slowdown);
  op.kernels = static_cast<std::uint32_t>(launched);
  op.behind_lengths = packed;
  return op;
}

Op RowOpCosts::activation(std::int64_t rows, std::int64_t f, ElementwisePass pass, RangeUse& use) const {
  const std::int64_t up = (basis.model.gated_ffn ? 2 : 1) * f;
  const bool unfused = basis.model.gated_ffn && (!basis.framework.fused_activation ||
                                                 basis.framework.linear_layers == LinearLayers::torch_eager);
  // Forward: reads the input and writes the output. Unfused: silu(gate), then its product with up. Backward:
  // reads the output's gradient and the kept input, writes the input's gradient. Unfused: three kernels that
  // read two and write one, and a concatenation of the gradients of gate and up.
  const bool forward = pass == ElementwisePass::forward;
  const std::int64_t fused_width = forward ? up + f : 2 * up + f;
  const std::int64_t width = unfused ? (forward ? 5 : 13) * f : fused_width;
  return kernels.moves(OpName::activation, Elementwise::swiglu,
                       as_double(rows) * as_double(width) * basis.element_bytes, use, pass);
}

}  // namespace equipoise
