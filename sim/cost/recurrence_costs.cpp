#include "sim/cost/recurrence_costs.h"

#include "policies/base/index.h"
#include "sim/cost/cast_costs.h"

namespace equipoise {

RecurrenceCosts::RecurrenceCosts(const CostBasis& basis, const KernelCosts& kernels, const CastCosts& casts,
                                 const LinearCosts& linear)
    : basis_(basis), kernels_(kernels), casts_(casts), linear_(linear) {
  if (!basis.model.recurrence) return;
  of_rank_ = basis.model.recurrence->of_rank(basis.layout.tensor);
  const RecurrenceFacts& facts = of_rank_.facts();
  if (!facts.state) return;
  seconds_per_token_ =
      of_rank_.chunk_flops() / (facts.efficiency * basis.profile.device().peak_bf16_tflops * 1e12);
}

AttentionTimes RecurrenceCosts::times(double tokens) const {
  const double forward = tokens * seconds_per_token_;
  return {to_picoseconds(forward), to_picoseconds(forward * of_rank_.facts().backward)};
}

// Forward: reads and writes each channel. Backward: reads the gradient and the input, writes a gradient.
Op RecurrenceCosts::convolution(std::int64_t tokens, ElementwisePass pass, RangeUse& use) const {
  const double moved = pass == ElementwisePass::forward ? 2 : 3;
  return kernels_.moves(OpName::convolution, Elementwise::swiglu,
                        moved * as_double(tokens) *
                            as_double(of_rank_.shared_out(basis_.layout.context).smoothed_width()) *
                            basis_.element_bytes,
                        use, pass);
}

// A product of two rows as wide as the result, the first of which a gated norm norms. Forward: reads both,
// writes one. Backward: reads the gradient and both, writes the gradients of both.
Op RecurrenceCosts::product(OpName name, std::int64_t tokens, ElementwisePass pass, RangeUse& use) const {
  const double moved = pass == ElementwisePass::forward ? 3 : 5;
  const Elementwise like = name == OpName::rms_norm ? Elementwise::rms_norm : Elementwise::swiglu;
  return kernels_.moves(name, like, moved * as_double(tokens) * as_double(outputs()) * basis_.element_bytes,
                        use, pass);
}

void RecurrenceCosts::push_inputs(std::int64_t n, OpList& ops, RangeUse& use) const {
  linear_.push_column(OpName::qkv_gemm, n, of_rank_.input_width(), basis_.model.hidden, ops, use);
  if (of_rank_.facts().decays_by_channel)
    for (const std::int64_t width : {of_rank_.key_width(), of_rank_.value_width()}) {
      linear_.push_replicated(basis_.own_rows(n), of_rank_.value_dim, basis_.model.hidden, ops, use);
      linear_.push_column(OpName::qkv_gemm, n, width, of_rank_.value_dim, ops, use);
    }
  if (!of_rank_.facts().state) ops.push(product(OpName::activation, n, ElementwisePass::forward, use));
  if (of_rank_.convolution > 0) ops.push(convolution(n, ElementwisePass::forward, use));
}

void RecurrenceCosts::push_output_gate(std::int64_t n, ElementwisePass pass, OpList& ops,
                                       RangeUse& use) const {
  ops.push(product(output_gate(), n, pass, use));
}

void RecurrenceCosts::push_input_gradients(std::int64_t n, OpList& ops, RangeUse& use) const {
  if (of_rank_.convolution > 0) ops.push(convolution(n, ElementwisePass::backward, use));
  if (!of_rank_.facts().state) ops.push(product(OpName::activation, n, ElementwisePass::backward, use));
  if (of_rank_.facts().decays_by_channel)
    for (const std::int64_t width : {of_rank_.key_width(), of_rank_.value_width()}) {
      linear_.push_gradients(WeightKind::qkv, n, width, of_rank_.value_dim, true, ops, use);
      linear_.push_replicated_gradients(WeightKind::qkv, basis_.own_rows(n), of_rank_.value_dim,
                                        basis_.model.hidden, ops, use);
    }
  casts_.push_quantize(WeightKind::qkv, n, of_rank_.input_width(), ops, use);
  linear_.push_gradients(WeightKind::qkv, n, of_rank_.input_width(), basis_.model.hidden, true, ops, use);
}

}  // namespace equipoise
