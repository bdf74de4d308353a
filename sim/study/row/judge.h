// The result of a row: its metrics and its memory, or why it did not run.
#pragma once

#include <string>

#include "sim/study/row/plan_row.h"
#include "sim/study/row/simulate.h"
#include "sim/study/row/study_row.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Metrics, memory and notes of a row that ran; result.run is the row as it ran.
PolicyResult describe_row(const StudyRow& row, PlannedRow planned, SimulatedPlan simulated,
                          const RunStudyOptions& options);

// For a model whose states leave no room for any plan: names the fullest stage and what it holds.
PolicyResult without_room(StudyRow row);

// The message of an error, which may name files, as a row's reason.
Note fault_note(const std::string& error);

// The result of a row that could not be planned or simulated.
PolicyResult not_run(PolicyRun row, RowStatus status, Note reason);

// The peak of which MFU is a share, at the study's precision: FP8's if GEMMs run in FP8.
double peak_tflops(const Layout& layout, const DeviceFacts& device);
Note peak_note(const Layout& layout, const DeviceFacts& device);

}  // namespace equipoise
