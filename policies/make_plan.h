// Runs a policy on documents, with what all policies share.
#pragma once

#include <span>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/workload.h"

namespace equipoise {

// Runs the policy with the steps that all policies share: options.oversize treats documents above its hard
// limit (UserError by default), lanes are put into options.order, Step::pack_ms gets the measured time, and
// in debug builds or with options.verify the validator checks the plan. With a sink, that gets all steps, and
// the returned plan has none. A policy that `streams` gives them to it while it packs, unless the validator
// has to see the whole plan first.
Plan make_plan(const Policy& policy, const PackingProblem& problem);

// The order of micro-batches in a lane is an option of every policy.
//
// as_packed keeps the plan's order. descending sorts stably by W (the sum over slices). bell takes the even
// positions of that order reversed, then the odd ones, so that work rises to the largest and falls again
// (ranks 4 2 0 1 3). Chunks of dependent groups keep their places, since the schedule needs them in order
// after the others. O(m log m) for m micro-batches of a lane, plus one W per slice.
void order_micro_batches(std::span<Step> steps, Order order, const Workload& workload);

}  // namespace equipoise
