// Checks a simulated step for `study --verify`, with code that shares no engine with the simulator. It checks
// the order of its ops by their dependencies. It checks its times by the longest path through a graph of all
// its kernels. It checks its peak memory by a list of what each op leaves behind.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/memory/memory_model.h"
#include "sim/step/op_run.h"
#include "sim/step/step_result.h"

namespace equipoise {

// One thing that was checked.
struct Check {
  std::string what;
  std::optional<bool> holds = true;  // none if it was not checked
  std::string found;                 // what is wrong, or why it was not checked
};

// A step of a row as it ran, op by op, in which every op has the network to itself.
struct StepToCheck {
  const Step& step;
  const OpProgram& program;
  const OpOptions& options;
  const OpResult& result;
  const MemoryModel& memory;
  const StepWork& work;  // with the tokens of its ranks (StepOptions::record_ops)
  bool recompute_ahead = false;
};

// Three checks: the schedule, the timeline and the memory of a step.
std::vector<Check> check_step(const StepToCheck& step);

}  // namespace equipoise
