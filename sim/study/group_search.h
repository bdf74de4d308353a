// HBP's groups in a study: which lengths and degrees may be, what they checkpoint, and the row's own
// simulator as their price (policies/packing/hbp_search.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "policies/policy.h"
#include "sim/study/derive.h"

namespace equipoise {

// Whether some pack length fits into memory at some CP degree.
bool any_group_fits(const Study& study, const RunModels& models, const PolicyRun& run);

// Fills run.pack.groups and, for the summary, run.pack.candidates. `seconds` prices a plan: infinite where a
// step does not fit. Leaves groups empty where nothing fits.
void choose_groups(const Study& study, const RunModels& models, const PackingProblem& problem,
                   const std::function<double(const Plan&)>& seconds, PolicyRun& run,
                   std::vector<std::string>& notes);

}  // namespace equipoise
