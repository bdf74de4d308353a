// From documents to a row's plan: what the policy leaves to a search is searched, then the policy packs. One
// planner for studies and for `pack`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "policies/workload.h"
#include "sim/study/derive.h"
#include "sim/study/read/study.h"
#include "sim/study/run.h"

namespace equipoise {

// What a search asks for: the price of a plan under the row's options as they stand.
struct PlanPrices {
  std::function<double(const Plan&)> thresholds;  // wlb with `search`
  std::function<double(const Plan&)> groups;      // hbp; infinite where a step does not fit
};

struct PlannedRow {
  Plan plan;
  double pack_ms = 0;              // measured, mean per global batch
  std::vector<std::string> notes;  // for the user, with the row's label
};

// Puts what was searched into `row`. Throws UnplaceableDocument where the policy cannot place a document,
// UserError where it refuses its options. `models` may be null (`pack` without a model): groups are not
// chosen then.
PlannedRow plan_with(const Study& study, const RunModels* models, const DocumentSet& documents,
                     const Workload& workload, const PlanPrices& prices, PolicyRun& row);

// The same with simulated steps as prices. `row` is run.row.
PlannedRow plan_row(const Run& run, PolicyRun& row);

// Tokens of the longest slice.
std::int64_t longest_of(const DocumentSet& documents);

}  // namespace equipoise
