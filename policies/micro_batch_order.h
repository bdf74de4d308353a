// The order of micro-batches in a lane, an option of every policy.
#pragma once

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/workload.h"

namespace equipoise {

// as_packed leaves the plan alone. descending: by W (sum over the slices), stable. bell: that order's even
// positions reversed, then its odd ones, so work rises to the largest and falls again (ranks 4 2 0 1 3).
// Chunks of dependent groups keep their places: the schedule needs them in order, after the others.
// O(m log m) for m micro-batches of a lane, plus one W for each slice.
void order_micro_batches(Plan& plan, Order order, const Workload& workload);

}  // namespace equipoise
