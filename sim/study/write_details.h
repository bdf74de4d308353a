// What can be looked at of a row's first steps: timelines and, at op fidelity, critical paths and Chakra
// traces.
#pragma once

#include <string>
#include <vector>

#include "policies/plan.h"
#include "sim/step/step_result.h"
#include "sim/study/run.h"

namespace equipoise {

struct WrittenDetails {
  std::vector<StepResult> recorded;  // the first step, with its ops
  std::string critical_path;         // the text of critical_path/LABEL.json; empty at stage fidelity
};

// Simulates the first steps once more and writes what run.options.details asks for. Throws UserError where a
// file cannot be written.
WrittenDetails write_details(const Run& run, const Plan& plan, const ShardRule& rule);

}  // namespace equipoise
