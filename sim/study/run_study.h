// Runs a study: every policy plans the same documents, every step of every plan is simulated, and the results
// become metrics (specs of the names: sim/metrics).
#pragma once

#include <string>
#include <vector>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

// A policy that cannot run is a row with its reason. Throws Interrupted, and UserError where files of
// options.details cannot be written.
StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options);
StudyResult run_study(const Study& study, const RunStudyOptions& options);

// The same of rows that were run elsewhere, each as run_row has it: those of study.policies, in their order.
StudyResult study_of_rows(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                          std::vector<PolicyResult> rows);

// Two rows run at a time where there are several threads, so that none waits where one of them ends. Where
// steps have threads of their own, rows take turns: with contention, and at op fidelity with few steps.
int rows_at_a_time(const Study& study, const RunStudyOptions& options);

// Every row refused for the same reason: a case of a sweep that cannot run at all.
StudyResult refused_study(const Study& study, const std::string& reason);

}  // namespace equipoise
