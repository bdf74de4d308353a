// The price of one kernel or one collective of a layer, as an op with its duration, FLOPs and bytes.
#pragma once

#include <cstdint>

#include "profiler/profile/cost_models.h"
#include "sim/cost/cost_basis.h"
#include "sim/workload/ops.h"

namespace equipoise {

class KernelCosts {
 public:
  KernelCosts(const CostBasis& basis, NetworkRates network);

  [[nodiscard]] Op gemm(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use) const;
  // `groups` products of m x n x k in one launch. `output_bytes` is moved per element of the result.
  [[nodiscard]] Op grouped_gemm(const GemmModel& model, OpName name, GemmRole role, std::int64_t groups,
                                std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use,
                                double output_bytes = 2) const;
  // An elementwise kernel that moves so many bytes.
  [[nodiscard]] Op moves(OpName name, Elementwise op, double bytes, RangeUse& use,
                         ElementwisePass pass = ElementwisePass::forward) const;
  // An all-gather or a reduce-scatter of `tokens` rows of `width` elements over TP, including the copy into
  // the order of the sequence.
  [[nodiscard]] Op tp_collective(OpName name, std::int64_t tokens, std::int64_t width, RangeUse& use) const;
  // The same collective over another group, without that copy.
  [[nodiscard]] Op tp_collective(OpName name, std::int64_t tokens, std::int64_t width, GroupShape group,
                                 RangeUse& use) const;
  // A collective along the sequence with the copy that puts the moved rows in order.
  [[nodiscard]] Op in_order(Op collective, RangeUse& use) const;
  // One pipeline hop of a rank's activations (or their gradients) between two stages.
  [[nodiscard]] Op pipeline_send(std::int64_t tokens, int from_stage, int to_stage, RangeUse& use) const;
  // The time that compute under an exchange of this length loses to the SMs that the exchange holds. `told`
  // means that the compute is launched for the remaining SMs.
  [[nodiscard]] Picoseconds lost_under(Picoseconds exchange, int exchange_sms, bool told) const;
  // The same loss to an exchange of experts, as an op that runs under it.
  [[nodiscard]] Op taken_sms(Picoseconds exchange) const;

  [[nodiscard]] const GemmModel& gemm_model() const { return gemm_; }
  [[nodiscard]] const GemmModel& bf16_gemm() const { return logits_gemm_; }
  [[nodiscard]] const ElementwiseModel& elementwise() const { return elementwise_; }
  [[nodiscard]] const CollectiveModel& collectives() const { return collectives_; }

 private:
  const CostBasis& basis_;
  GemmModel gemm_;
  GemmModel logits_gemm_;  // always bf16
  ElementwiseModel elementwise_;
  CollectiveModel collectives_;
};

}  // namespace equipoise
