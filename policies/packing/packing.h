// The packing policies, one function and one file each; registry.cpp gives them their names.
#pragma once

#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

Plan plan_plain(const PackingProblem& problem);
Plan plan_fixed_greedy(const PackingProblem& problem);
Plan plan_wlb(const PackingProblem& problem);

}  // namespace equipoise
