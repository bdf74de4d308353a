// The packing policies without options of their own, one function and one file each; registry.cpp gives them
// their names. Those with options have their own header.
#pragma once

#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

Plan plan_plain(const PackingProblem& problem);
Plan plan_random(const PackingProblem& problem);
Plan plan_padded(const PackingProblem& problem);
Plan plan_sorted(const PackingProblem& problem);
Plan plan_longalign_packing(const PackingProblem& problem);
Plan plan_ffd(const PackingProblem& problem);
Plan plan_ffs(const PackingProblem& problem);
Plan plan_bfs(const PackingProblem& problem);
Plan plan_bfd(const PackingProblem& problem);
Plan plan_spfhp(const PackingProblem& problem);
Plan plan_lpt(const PackingProblem& problem);
Plan plan_multipack(const PackingProblem& problem);
Plan plan_dp_balanced(const PackingProblem& problem);

}  // namespace equipoise
