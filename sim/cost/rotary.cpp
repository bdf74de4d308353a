// Rotary embedding of a layer's Q and K: one kernel, or PyTorch's own ones, which Megatron-core runs document
// by document.
#include <algorithm>
#include <array>
#include <vector>

#include "policies/base/index.h"
#include "sim/cost/layer_costs.h"

namespace equipoise {
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
