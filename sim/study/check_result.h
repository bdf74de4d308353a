// `study --verify`: compares a result with code that shares neither the engine nor the sums with it.
#pragma once

#include <vector>

#include "sim/study/run_study.h"

namespace equipoise {

// The validator checks the plan of each row. The engine of the other fidelity checks its times, except with
// jitter, stragglers or contention, which only one of them knows. sim/verify checks the schedule, timeline
// and memory of its slowest step, and sums of its steps check its table.
struct CheckedResult {
  StudyResult result;
  std::vector<Check> checks;  // empty without options.verify
};
CheckedResult run_checked(Study study, const StudyInputs& inputs, RunStudyOptions options);

}  // namespace equipoise
