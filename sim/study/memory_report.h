// Why a policy's memory peak is what it is: which rank, when, during which op, and what each category holds.
//
// The peak itself comes with every step, from the op orders. When it happened is only asked of the step with
// the largest one: at `op` fidelity its times are at hand, at `stage` fidelity that step is simulated once
// more with its ops recorded.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/step_result.h"

namespace equipoise {

struct PolicyResult;
struct Run;
struct OutOfMemory;

// When the op that sets the peak ran, in its step.
struct PeakMoment {
  int step = -1;  // -1: no step ran
  std::optional<TimeSpan> op;
};

// Finds the step of result.peak and its op's time. `result` has its steps and its peak.
PeakMoment find_peak(const Run& run, const PolicyResult& result, const Plan& plan, const ShardRule& rule);

std::string out_of_memory_text(const OutOfMemory& fault);
// One line: "57.2 of 79.1 GiB on stage 0 of lane 0, CP rank 0, ...", categories by size.
std::string peak_text(const PolicyResult& policy);
nlohmann::json memory_json(const PolicyResult& policy);

}  // namespace equipoise
