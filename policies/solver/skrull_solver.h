// Skrull's joint program (arXiv 2505.19609), solved for micro-batches and CP ranks together.
#pragma once

#include <cstdint>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

Plan plan_skrull_solver(const PackingProblem& problem);
// A micro-batch holds fewer than C*N tokens, and so does a document.
std::int64_t skrull_solver_hard_limit(const PackOptions& options);

}  // namespace equipoise
