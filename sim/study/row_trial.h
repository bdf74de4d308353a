// Trying a row to see whether it runs: with other recompute, or with a changed study.
#pragma once

#include <string>
#include <vector>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

// `recompute: auto` becomes the fewest checkpointed layers with which the row runs (recompute_choice.h).
void resolve_recompute(const Study& study, const StudyInputs& inputs, PolicyRun& row,
                       const RunStudyOptions& options, std::vector<std::string>& notes);

// What would make a row run that ended as `status` (fit_search.h); empty where nothing is known.
std::string what_would_run(const Study& study, const StudyInputs& inputs, const PolicyRun& row,
                           RowStatus status, const RunStudyOptions& options);

}  // namespace equipoise
