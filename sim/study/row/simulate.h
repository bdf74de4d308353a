// Simulates the steps of a row's plan at the chosen fidelity: one by one, or blocks of them on all threads.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/metrics/step_figures.h"
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
// (MemoryModel::room_bytes); the steps after it keep empty figures.
enum class Until { all_steps, first_that_does_not_fit };

// The steps of a plan, simulated by a sharding rule.
struct SimulatedPlan {
  std::string shard;
  ShardRule rule;
  std::vector<StepFigures> steps;
  Step fullest;  // the first step that has the largest memory peak

  double most_bytes = -1;  // its peak

  void add(const Step& step, StepFigures figures);
};

// Simulates a row's plan as it is made: each block of its steps on all threads, by the row's own sharding
// rule.
class PlanSimulator {
 public:
  PlanSimulator(const StudyRow& row, const RunStudyOptions& options, Until until);
  ~PlanSimulator();

  // The next steps. What a schedule refuses is thrown by `finish`, since a policy may refuse its documents
  // first.
  void simulate(const std::vector<Step>& block);
  // static-best is the better of its two rules: one that leaves the headroom free before one that only fits,
  // that before one that does not, then the faster.
  SimulatedPlan finish();

 private:
  struct ByRule;
  const StudyRow& row_;
  std::optional<Arrivals> arrivals_;  // none if the policy sees the whole set
  std::vector<std::unique_ptr<ByRule>> rules_;
  std::exception_ptr refused_;
};

// The same for a plan that has its steps.
SimulatedPlan simulate_plan(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                            Until until);

// Steps that a row's simulator takes at a time: enough to keep all threads busy.
std::size_t steps_of_block(const RunStudyOptions& options);

bool fits(const WorkSums& step, double capacity_bytes);
bool all_fit(const std::vector<StepFigures>& steps, double capacity_bytes);

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
