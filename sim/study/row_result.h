// A row's result: its metrics, its memory, and why it did not run where it did not.
#pragma once

#include <string>

#include "sim/study/planner.h"
#include "sim/study/run.h"
#include "sim/study/simulate_plan.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Metrics, memory and notes of what ran; result.run is the row as it ran.
PolicyResult describe_row(const Run& run, PlannedRow planned, SimulatedPlan simulated);

// The model's states leave no room for any plan: the row says so, with the fullest stage and what it holds.
PolicyResult without_room(const RunModels& models, PolicyRun row, const std::string& reason);

// What could not be planned or simulated.
PolicyResult not_run(PolicyRun row, RowStatus status, const std::string& reason);

}  // namespace equipoise
