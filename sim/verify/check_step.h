// Checks a simulated step again for `study --verify`, by code that shares no engine with the simulator: the
// order of its ops by their dependencies, its times by the longest path through a graph of all its kernels,
// and its peak memory by a list of what each op leaves behind.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/memory/memory_model.h"
#include "sim/step/op_run.h"
#include "sim/step/step_result.h"

namespace equipoise {

// One thing that was checked again.
struct Check {
  std::string what;
  std::optional<bool> holds = true;  // none: it was not checked
  std::string found;                 // what does not hold, or why it was not checked
};

// A step of a row as it ran, op by op, every op with the network to itself.
struct StepToCheck {
  const Step& step;
  const OpProgram& program;
  const OpOptions& options;
  const OpResult& result;
  const MemoryModel& memory;
  const StepWork& work;  // with the tokens of its ranks (StepOptions::record_ops)
  bool recompute_ahead = false;
};

// The schedule, the timeline and the memory of a step: three checks.
std::vector<Check> check_step(const StepToCheck& step);

}  // namespace equipoise
