// The price of a layer's linear recurrence: modelled, not measured on the profile's device.
//
// The recurrence itself runs the products of its chunks at the share of the device's bf16 peak that public
// tables of its kernels show (RecurrenceFacts). So it is too fast for a device whose memory is slower, in
// proportion to its peak, than that of those GPUs. Its time is proportional to tokens and the same for any
// documents: in those tables eight documents take up to 6% longer than one. The convolution and the gated
// norm move their rows once. A short convolution without a state is priced by the rows that it and its two
// products move, each a kernel of its own.
#pragma once

#include <cstdint>

#include "sim/cost/attention_costs.h"
#include "sim/cost/linear_costs.h"

namespace equipoise {

class RecurrenceCosts {
 public:
  RecurrenceCosts(const CostBasis& basis, const KernelCosts& kernels, const CastCosts& casts,
                  const LinearCosts& linear);

  // The recurrence of one layer on a TP rank over so many tokens.
  [[nodiscard]] AttentionTimes times(double tokens) const;
  // FLOPs of its forward by the products of chunks.
  [[nodiscard]] double flops(double tokens) const { return tokens * of_rank_.chunk_flops(); }
  // Elements of a token on a TP rank: what the input projection makes, with the replicas of q and k that a CP
  // group of `context` ranks needs, and the recurrence's result.
  [[nodiscard]] std::int64_t inputs(int context) const {
    return of_rank_.shared_out(context).projected_width();
  }
  [[nodiscard]] std::int64_t outputs() const { return of_rank_.value_width(); }

  // A layer's ops besides the norm before it: up to the recurrence, and from it to the output projection's
  // input. Convolution and norm are priced for the rank's own tokens, although the ranks of a CP group run
  // them for all tokens of their heads, which is as much. Replicas of q and k are convolved, too, as many as
  // the layout's CP degree needs.
  void push_inputs(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_output_gate(std::int64_t tokens, ElementwisePass pass, OpList& ops, RangeUse& use) const;
  [[nodiscard]] OpName output_gate() const {  // the op that this pushes
    return of_rank_.facts().state ? OpName::rms_norm : OpName::activation;
  }
  void push_input_gradients(std::int64_t tokens, OpList& ops, RangeUse& use) const;

 private:
  [[nodiscard]] Op convolution(std::int64_t tokens, ElementwisePass pass, RangeUse& use) const;
  [[nodiscard]] Op product(OpName name, std::int64_t tokens, ElementwisePass pass, RangeUse& use) const;

  const CostBasis& basis_;
  const KernelCosts& kernels_;
  const CastCosts& casts_;
  const LinearCosts& linear_;
  RecurrentShape of_rank_;        // of one TP rank; empty for a model without recurrences
  double seconds_per_token_ = 0;  // forward
};

}  // namespace equipoise
