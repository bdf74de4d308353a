// Simulates the steps of a row's plan at the chosen fidelity: one by one, or all of them on all threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/op_step_simulator.h"
#include "sim/step/step_result.h"
#include "sim/study/row/study_row.h"
#include "sim/study/run_options.h"

namespace equipoise {

// Simulates steps; one per thread. Keeps a reference to `rule`.
class StepRunner {
 public:
  // `threads` work on one step at op fidelity. `progress` reports a step under contention.
  StepRunner(const StudyRow& row, const ShardRule& rule, const StepOptions& options,
             const StepSettings& settings, int threads = 1, std::function<void(double)> progress = {});
  StepResult simulate(const Step& step, std::size_t number);
  [[nodiscard]] const OpStepSimulator* op() const { return op_.get(); }  // null at stage fidelity

 private:
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<StepSimulator> stage_;
  std::unique_ptr<OpStepSimulator> op_;
};

// A trial ends at the first step that does not fit into the memory that choices may fill
// (MemoryModel::room_bytes); the steps after it keep an empty result.
enum class Until { all_steps, first_that_does_not_fit };

// The row's steps by its own sharding rule, and the rule that ran: static-best is the better of its two, one
// that leaves the headroom free before one that only fits, that before one that does not, then the faster.
struct SimulatedPlan {
  std::string shard;
  ShardRule rule;
  std::vector<StepResult> steps;
};
SimulatedPlan simulate_plan(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                            Until until);

bool fits(const StepWork& step, double capacity_bytes);
bool all_fit(const std::vector<StepResult>& steps, double capacity_bytes);

// What a search of a plan's options minimises: the seconds of all its steps, by the row's trial rule.
double trial_seconds(const StudyRow& row, const Plan& plan, const RunStudyOptions& options);
// The same seconds, infinite if a step does not leave the headroom free.
double trial_seconds_that_fit(const StudyRow& row, const Plan& plan, const RunStudyOptions& options);
// The seconds of each step, infinite if it does not leave the headroom free.
std::vector<double> trial_steps_that_fit(const StudyRow& row, const Plan& plan,
                                         const RunStudyOptions& options);

// Threads for each step at op fidelity, if there are more threads than steps.
int threads_of_step(int jobs, std::size_t steps);

}  // namespace equipoise
