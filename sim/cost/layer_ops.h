// What one rank executes for one layer of one micro-batch, with durations.
//
// A forward is `before` | CP synchronisation | attention, recurrence or both, `after`; a backward is `before`
// | KV gathered again | attention backward | dKV reduce-scattered | `after`. Everything between two bars is
// local to the rank (TP collectives included: TP ranks do the same and arrive together). Both engines are
// built from these lists.
#pragma once

#include <cstdint>

#include "sim/cost/expert_costs.h"
#include "sim/cost/recurrence_costs.h"

namespace equipoise {

struct LayerOps {
  const CostBasis& basis;
  const KernelCosts& kernels;
  const RowOpCosts& rows;
  const CastCosts& casts;
  const LinearCosts& linear;
  const FfnCosts& ffn;
  const ExpertCosts& experts;
  const RecurrenceCosts& recurrence;

  // The local ops of one layer on a rank with `tokens` tokens of `documents` documents. If tokens arrive at
  // the experts of a rank without tokens, it has the same ops, and only those for the experts take time.
  void forward(LayerKind kind, std::int64_t tokens, const ExpertArrivals& arriving, OpList& before,
               OpList& after, RangeUse& use, std::int64_t documents = 1) const;
  void backward(LayerKind kind, std::int64_t tokens, const ExpertArrivals& arriving, OpList& before,
                OpList& after, RangeUse& use, std::int64_t documents = 1) const;
  // The same ops if as many tokens arrive as the rank sends.
  void forward(LayerKind kind, std::int64_t tokens, OpList& before, OpList& after, RangeUse& use) const {
    forward(kind, tokens, experts.sent_to_experts(tokens), before, after, use);
  }
  void backward(LayerKind kind, std::int64_t tokens, OpList& before, OpList& after, RangeUse& use) const {
    backward(kind, tokens, experts.sent_to_experts(tokens), before, after, use);
  }

 private:
  void push_projections(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void push_index(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  [[nodiscard]] bool indexes(Mixer mixer) const { return basis.model.indexer && mixer == Mixer::attention; }
  void push_latent_expansion(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_ffn_backward(LayerKind kind, std::int64_t tokens, const ExpertArrivals& arriving, OpList& before,
                         RangeUse& use) const;
  void push_attention_gate(std::int64_t tokens, ElementwisePass pass, OpList& ops, RangeUse& use) const;
  void push_per_op(std::int64_t tokens, std::int64_t documents, OpList& ops, RangeUse& use) const;
  // The output projection of a mixer whose result is `width` elements wide, and its gradients.
  void push_output(std::int64_t tokens, std::int64_t width, OpList& ops, RangeUse& use) const;
  void push_output_gradients(std::int64_t tokens, std::int64_t width, OpList& ops, RangeUse& use) const;
  // Elements of a token's attention output on a TP rank, which the output projection reads.
  [[nodiscard]] std::int64_t attended_width() const {
    return std::int64_t{basis.model.heads} * basis.model.value_dim() / basis.layout.tensor;
  }
  void mark_unneeded(OpList& after, OpName maker, WeightKind product) const;
};

}  // namespace equipoise
