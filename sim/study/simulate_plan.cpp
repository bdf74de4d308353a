#include "sim/study/simulate_plan.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "sim/study/step_runner.h"

namespace equipoise {
namespace {

double total_seconds(const std::vector<StepResult>& steps) {
  double sum = 0;
  for (const StepResult& s : steps) sum += to_seconds(s.times.makespan);
  return sum;
}

}  // namespace

bool fits(const StepWork& step, double capacity_bytes) {
  return step.peak.parts.total() <= capacity_bytes && !step.bucket_broken;
}

bool all_fit(const std::vector<StepResult>& steps, double capacity_bytes) {
  return std::all_of(steps.begin(), steps.end(),
                     [&](const StepResult& s) { return fits(s.work, capacity_bytes); });
}

int threads_of_step(int jobs, std::size_t steps) {
  return std::max(1, jobs / static_cast<int>(std::max<std::size_t>(1, steps)));
}

int rows_at_a_time(const Study& study, const RunStudyOptions& options) {
  const bool op = options.steps.fidelity == Fidelity::op;
  const bool threads_in_steps =
      options.steps.op.contention ||
      (op && threads_of_step(options.jobs, static_cast<std::size_t>(study.steps)) > 1);
  return options.jobs > 1 && study.policies.size() > 1 && !threads_in_steps && !options.rows_in_turn ? 2 : 1;
}

// Steps are independent: each worker has its own simulator.
std::vector<StepResult> simulate_steps(const Run& run, const Plan& plan, const ShardRule& rule, Until until) {
  const int jobs = run.options.row != nullptr ? run.options.row->count() : std::max(1, run.options.jobs);
  StepOptions options = run.step_options();
  options.record_gpus = run.options.record_gpus;
  const std::size_t steps = plan.steps.size();
  std::vector<StepResult> results(steps);
  std::vector<std::unique_ptr<StepRunner>> simulators(static_cast<std::size_t>(jobs));
  std::atomic<bool> full = false;
  std::atomic<std::size_t> done = 0;
  // Only one worker reports, so that nobody has to wait for the terminal.
  const auto report = [&](double share_of_step) {
    if (run.options.progress_of_row)
      run.options.progress_of_row((static_cast<double>(done) + share_of_step) / static_cast<double>(steps));
  };
  const int threads = threads_of_step(jobs, steps);
  const auto simulate = [&](int worker, std::size_t i) {
    end_if_stopped(run.options);
    if (until == Until::first_that_does_not_fit && full) return;
    auto& simulator = simulators[at(worker)];
    if (!simulator)
      simulator = worker == 0 ? std::make_unique<StepRunner>(run, rule, options, threads, report)
                              : std::make_unique<StepRunner>(run, rule, options, threads);
    results[i] = simulator->run(plan.steps[i], i);
    ++done;
    if (!fits(results[i].work, run.models.memory.capacity_bytes())) full = true;
  };
  if (run.options.row != nullptr)
    run.options.row->for_each(steps, simulate);
  else
    parallel_for(jobs, steps, simulate);
  return results;
}

SimulatedPlan simulate_plan(const Run& run, const Plan& plan, Until until) {
  const auto simulated = [&](std::string_view shard) {
    return SimulatedPlan{std::string(shard), simulate_steps(run, plan, run.rule(shard), until)};
  };
  if (run.row.rule().choice != ShardChoice::static_best) return simulated(run.row.shard);
  const double capacity = run.models.memory.capacity_bytes();
  SimulatedPlan first = simulated("per-sequence"), other = simulated("per-document");
  const bool fits_first = all_fit(first.steps, capacity), fits_other = all_fit(other.steps, capacity);
  const bool stays =
      fits_first != fits_other ? fits_first : total_seconds(other.steps) >= total_seconds(first.steps);
  return stays ? std::move(first) : std::move(other);
}

double trial_seconds(const Run& run, const Plan& plan) {
  return total_seconds(simulate_steps(run, plan, run.trial_rule(), Until::all_steps));
}

double trial_seconds_that_fit(const Run& run, const Plan& plan) {
  const std::vector<StepResult> steps =
      simulate_steps(run, plan, run.trial_rule(), Until::first_that_does_not_fit);
  return all_fit(steps, run.models.memory.capacity_bytes()) ? total_seconds(steps)
                                                            : std::numeric_limits<double>::infinity();
}

}  // namespace equipoise
