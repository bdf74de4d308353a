// The one judge of finished plans, whichever policy made them.
//
//   - every token of the document set is executed or dropped, exactly once;
//   - a slice of the set may be cut, but its pieces run in order: never an earlier one in a later step, nor
//     behind a later one in the same micro-batch;
//   - budgets: tokens of a micro-batch, tokens of a CP rank under placements, GPUs of a step's lanes;
//   - placements name CP ranks of their lane;
//   - the chunks of a dependent group follow each other in one lane, whole and in order;
//   - what a step reports as carried is exactly what has arrived and runs later (batch k arrives at step k).
//
// O(n log n), linear in the size of the plan apart from one sort of its pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

struct PlanLimits {
  std::int64_t micro_batch_tokens = 0;  // 0: no limit (a micro-batch's own pack_length always holds)
  std::int64_t rank_tokens = 0;         // tokens a CP rank where placements exist; 0: no limit
  std::int64_t gpus = 0;                // that the lanes of one barrier group may use; 0: no limit
  int context = 0;  // CP degree of lanes with so many tokens a micro-batch, others in proportion; 0: all
};

// The first law that the plan breaks, in words; nullopt if it breaks none. `batches` are what the policy was
// given (after --oversize); plan.dropped may hold tokens that are not in them.
std::optional<std::string> plan_violation(std::span<const GlobalBatch> batches, const Plan& plan,
                                          const PlanLimits& limits);

}  // namespace equipoise
