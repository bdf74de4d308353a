// `study --verify`: a result compared with what code says that shares neither engine nor sums with it.
#pragma once

#include <vector>

#include "sim/study/run_study.h"

namespace equipoise {

// The validator checks the plan of each row, the engine of the other fidelity its times (not with jitter,
// stragglers or contention, which only one of them knows), sim/verify its slowest step's schedule, timeline
// and memory, and sums of its steps its table.
struct CheckedResult {
  StudyResult result;
  std::vector<Check> checks;  // empty without `verify`
};
CheckedResult run_checked(Study study, const StudyInputs& inputs, RunStudyOptions options, bool verify);

}  // namespace equipoise
