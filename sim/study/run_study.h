// Runs a study: every policy plans the same documents, every step of every plan is simulated, and the results
// become metrics (sim/metrics names them).
#pragma once

#include <string>
#include <vector>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

// A policy that cannot run becomes a row with its reason. Throws Interrupted, and UserError if files of
// options.details cannot be written.
StudyResult run_study(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options);
StudyResult run_study(const Study& study, const RunStudyOptions& options);

// The result for rows that ran elsewhere, each as run_row returns it, in the order of study.policies.
StudyResult study_of_rows(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
                          std::vector<PolicyResult> rows);

// Two rows run at a time if there are several threads, so that no thread waits when a row ends. If steps have
// threads of their own, rows take turns: under contention, and at op fidelity with few steps.
int rows_at_a_time(const Study& study, const RunStudyOptions& options);

// Refuses every row for the same reason, for a case of a sweep that cannot run at all.
StudyResult refused_study(const Study& study, const std::string& reason);

}  // namespace equipoise
