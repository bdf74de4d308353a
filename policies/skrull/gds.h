// Skrull's packing policies (arXiv 2505.19609), which differ in how documents are placed inside a
// micro-batch.
#pragma once

#include "policies/policy.h"

namespace equipoise {

Plan plan_gds(const PackingProblem& problem);          // micro-batches only
Plan plan_skrull(const PackingProblem& problem);       // + DACP placements
Plan plan_round_robin(const PackingProblem& problem);  // + round-robin placements, the ablation

// A micro-batch holds fewer than C*N tokens, so a document does too; without roll-back nothing is refused.
std::int64_t skrull_hard_limit(const PackOptions& options);

}  // namespace equipoise
