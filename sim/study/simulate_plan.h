// All steps of a row's plan, simulated on all threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "policies/plan.h"
#include "sim/step/step_result.h"
#include "sim/study/run.h"

namespace equipoise {

// A trial ends at the first step that does not fit into memory; the steps after it keep an empty result.
enum class Until { all_steps, first_that_does_not_fit };

// Two rows run at a time where there are several threads, so that none waits where one of them ends. Where
// steps have threads of their own, rows take turns: with contention, and at op fidelity with few steps.
int rows_at_a_time(const Study& study, const RunStudyOptions& options);

// Threads that are left for each step, at op fidelity, where there are more of them than steps.
int threads_of_step(int jobs, std::size_t steps);

std::vector<StepResult> simulate_steps(const Run& run, const Plan& plan, const ShardRule& rule, Until until);

// The row's steps by its own sharding rule, and the rule that ran: static-best is the better of its two, one
// that fits before one that does not, then the faster.
struct SimulatedPlan {
  std::string shard;
  std::vector<StepResult> steps;
};
SimulatedPlan simulate_plan(const Run& run, const Plan& plan, Until until);

bool fits(const StepWork& step, double capacity_bytes);
bool all_fit(const std::vector<StepResult>& steps, double capacity_bytes);

// What a search of a plan's options minimises: the seconds of all its steps, by the row's rule.
double trial_seconds(const Run& run, const Plan& plan);
// The same; infinite where a step does not fit.
double trial_seconds_that_fit(const Run& run, const Plan& plan);

}  // namespace equipoise
