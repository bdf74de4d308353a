// What a row came to: its metrics and its memory, or why it did not run.
#pragma once

#include <string>

#include "sim/study/row/plan_row.h"
#include "sim/study/row/simulate.h"
#include "sim/study/row/study_row.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Metrics, memory and notes of what ran; result.run is the row as it ran.
PolicyResult describe_row(const StudyRow& row, PlannedRow planned, SimulatedPlan simulated,
                          const RunStudyOptions& options);

// The model's states leave no room for any plan: the row says so, with the fullest stage and what it holds.
PolicyResult without_room(StudyRow row);

// The message of an error, which names files, as a row's reason.
Note fault_note(const std::string& error);

// What could not be planned or simulated.
PolicyResult not_run(PolicyRun row, RowStatus status, Note reason);

// The peak that MFU is a share of, at the study's precision: of FP8 where GEMMs are in FP8, though attention
// is not.
double peak_tflops(const Layout& layout, const DeviceFacts& device);
Note peak_note(const Layout& layout, const DeviceFacts& device);

}  // namespace equipoise
