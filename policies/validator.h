// Checks finished plans of any policy against these laws:
//
//   - every token of the document set is executed or dropped, exactly once;
//   - a slice of the set may be cut, but its pieces run in order: an earlier piece never runs in a later
//     step, nor after a later piece in the same micro-batch;
//   - tokens of a micro-batch, tokens of a CP rank under placements and GPUs of a step's lanes stay within
//     limits;
//   - placements name CP ranks of their lane;
//   - the chunks of a dependent group follow each other in one lane, whole and in order;
//   - a step reports as carried exactly the slices that have arrived and run later (batch k arrives at step
//   k).
//
// O(n log n), linear in the size of the plan apart from one sort of its pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

struct PlanLimits {
  std::int64_t micro_batch_tokens = 0;  // 0: no limit (a micro-batch's own pack_length always holds)
  std::int64_t rank_tokens = 0;         // tokens per CP rank where placements exist; 0: no limit
  std::int64_t gpus = 0;                // GPUs that the lanes of one barrier group may use; 0: no limit
  int context = 0;  // CP degree at which micro_batch_tokens holds; other degrees scale it; 0: it holds at all
};

// Describes the first law that the plan breaks; nullopt if it breaks none. `batches`: the policy's input,
// after --oversize; plan.dropped may hold tokens that are not in them.
std::optional<std::string> plan_violation(const Batches& batches, const Plan& plan, const PlanLimits& limits);

// Whether make_plan checks the plan: with options.verify and in debug builds. It needs all steps, so that
// nothing streams then.
bool is_verified(const PackOptions& options);

}  // namespace equipoise
