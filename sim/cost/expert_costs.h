// The price of the FFN of a mixture-of-experts layer: router, exchanges, routed and shared experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "policies/plan.h"
#include "sim/cost/ffn_costs.h"

namespace equipoise {

// What arrives at the experts of a rank.
//
// The ranks of an expert-parallel group send their tokens, each to `active` experts. Experts are spread
// evenly over the ranks, so every rank receives the same number of copies, whatever it sent itself. Packs are
// unequal: a rank whose micro-batch is short or missing works for the others.
//
// Example, 2 ranks, 1,000 and 3,000 tokens, 8 experts per token: each sends 8 copies of its own tokens and
// receives 16,000.
struct ExpertArrivals {
  // The mean over the group's ranks, in sent tokens, each of which is `active` copies: gathered over the
  // expert's tensor-parallel ranks, and on each of these.
  double tokens = 0, rows = 0;
  double load = 1;  // busiest rank over the mean, without framework.expert_imbalance
  friend bool operator==(const ExpertArrivals&, const ExpertArrivals&) = default;
};

// The slot, out of `slots`, in which a memo keeps the costs of a rank with `tokens` tokens. If as many tokens
// arrive as the rank sends, `tokens` alone decides.
inline std::size_t memo_slot(std::int64_t tokens, const ExpertArrivals& arriving, std::size_t slots) {
  const std::int64_t from_others = static_cast<std::int64_t>(arriving.tokens) - tokens;
  return (static_cast<std::size_t>(tokens) + 31 * static_cast<std::size_t>(from_others)) % slots;
}

class ExpertCosts {
 public:
  ExpertCosts(const CostBasis& basis, const KernelCosts& kernels, const RowOpCosts& rows,
              const CastCosts& casts, const AdapterCosts& adapters, const FfnCosts& ffn);

  void push(std::int64_t tokens, bool backward, const ExpertArrivals& arriving, OpList& ops,
            RangeUse& use) const;
  // What arrives if all ranks of its group send as much as a rank with so many tokens.
  [[nodiscard]] ExpertArrivals sent_to_experts(std::int64_t tokens) const;
  // The load of the busiest expert rank over the mean: for the micro-batches of one exchange, and for a
  // micro-batch whose partners in the exchange are like it.
  [[nodiscard]] double load(std::span<const MicroBatch* const> together) const;
  [[nodiscard]] double load(const MicroBatch& micro_batch) const;
  // Number of exchanges in a layer's forward or backward. A backward may repeat a forward's.
  [[nodiscard]] std::size_t exchanges(bool backward) const {
    return backward && basis_.layout.repeats(RecomputeModule::moe) ? 4 : 2;
  }

 private:
  void push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const;
  [[nodiscard]] bool leaves_to_framework() const;
  void push_bias(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const;
  void push_clamp(std::int64_t routed, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  [[nodiscard]] Op expert_products(OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k,
                                   RangeUse& use) const;
  [[nodiscard]] Op expert_collective(OpName name, std::int64_t token_copies, RangeUse& use) const;
  void push_permute(double rows_moved, OpList& ops, RangeUse& use) const;
  [[nodiscard]] Op routing() const;

  const CostBasis& basis_;
  const KernelCosts& kernels_;
  const RowOpCosts& rows_;
  const CastCosts& casts_;
  const AdapterCosts& adapters_;
  const FfnCosts& ffn_;
  std::optional<GemmModel> expert_gemm_;  // framework.expert_kernel
  double router_load_ = 1;                // busiest expert rank over the mean, by how the router was trained
};

}  // namespace equipoise
