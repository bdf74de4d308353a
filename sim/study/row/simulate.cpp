#include "sim/study/row/simulate.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/parallel.h"

namespace equipoise {

static std::unique_ptr<Fabric> fabric_of(const RunModels& models) {
  FabricOptions options;
  options.gpus = models.grid.gpus();
  options.gpus_per_node = models.grid.gpus_per_node();
  options.nvlink_GBps = models.costs.profile().device().nvlink_GBps;
  options.nic_GBps = nic_GBps(models.cluster, models.costs.profile());
  options.wiring = models.cluster.wiring;
  options.oversubscription = models.cluster.oversubscription;
  return std::make_unique<Fabric>(options);
}

// Speed by slot of the op program: stage, replica, TP coordinate (one for all of a folded TP group, its
// slowest).
static std::vector<double> speeds_of(const OpFidelity& op, const RankGrid& grid) {
  if (op.stragglers.empty()) return {};
  const ParallelSizes& sizes = grid.sizes();
  const int tensor = op.fold_tp && !op.contention ? 1 : sizes.tensor;
  const int replicas = sizes.context * sizes.data;
  std::vector<double> speed(at(sizes.pipeline * replicas * tensor), 1.0);
  for (const auto& [gpu, factor] : op.stragglers) {
    const RankCoordinates where = grid.coordinates(gpu);
    const std::vector<int> group = grid.data_context_group(gpu);
    const auto replica = static_cast<int>(std::find(group.begin(), group.end(), gpu) - group.begin());
    double& slot =
        speed[at((where.pipeline * replicas + replica) * tensor + (tensor > 1 ? where.tensor : 0))];
    slot = std::min(slot, factor);
  }
  return speed;
}

StepRunner::StepRunner(const StudyRow& row, const ShardRule& rule, const StepOptions& options,
                       const StepSettings& settings, int threads, std::function<void(double)> progress) {
  const RunModels& models = *row.models;
  if (settings.fidelity == Fidelity::stage) {
    stage_ = std::make_unique<StepSimulator>(models.costs, rule, options, &models.memory);
    return;
  }
  if (settings.op.contention) fabric_ = fabric_of(models);
  OpStepOptions op;
  op.fold_tp = settings.op.fold_tp;
  op.jitter = {settings.op.jitter, settings.op.seed};
  op.speed = speeds_of(settings.op, models.grid);
  op.fabric = fabric_.get();
  op.threads = threads;
  op.progress = std::move(progress);
  op_ = std::make_unique<OpStepSimulator>(models.costs, rule, options, op, &models.memory);
}

StepResult StepRunner::simulate(const Step& step, std::size_t number) {
  return op_ ? op_->run(step, static_cast<std::int64_t>(number)) : stage_->run(step);
}

bool fits(const StepWork& step, double capacity_bytes) {
  return step.peak.parts.total() <= capacity_bytes && !step.bucket_broken;
}

bool all_fit(const std::vector<StepResult>& steps, double capacity_bytes) {
  return std::ranges::all_of(steps, [&](const StepResult& s) { return fits(s.work, capacity_bytes); });
}

int threads_of_step(int jobs, std::size_t steps) {
  return std::max(1, jobs / static_cast<int>(std::max<std::size_t>(1, steps)));
}

static double total_seconds(const std::vector<StepResult>& steps) {
  double sum = 0;
  for (const StepResult& s : steps) sum += to_seconds(s.times.makespan);
  return sum;
}

// Steps are independent: each worker has its own simulator.
static std::vector<StepResult> simulate_steps(const StudyRow& row, const Plan& plan, const ShardRule& rule,
                                              const RunStudyOptions& options, Until until) {
  const int jobs = options.row != nullptr ? options.row->count() : std::max(1, options.jobs);
  StepOptions of_step = row.step_options();
  of_step.record_gpus = options.record_gpus;
  const std::size_t steps = plan.steps.size();
  std::vector<StepResult> results(steps);
  std::vector<std::unique_ptr<StepRunner>> simulators(static_cast<std::size_t>(jobs));
  std::atomic<bool> full = false;
  std::atomic<std::size_t> done = 0;
  // Only one worker reports, so that none waits for the terminal.
  const auto report = [&](double share_of_step) {
    if (options.progress_of_row)
      options.progress_of_row((static_cast<double>(done) + share_of_step) / static_cast<double>(steps));
  };
  const int threads = threads_of_step(jobs, steps);
  const auto simulate = [&](int worker, std::size_t i) {
    end_if_stopped(options);
    if (until == Until::first_that_does_not_fit && full) return;
    auto& simulator = simulators[at(worker)];
    if (!simulator)
      simulator = worker == 0
                      ? std::make_unique<StepRunner>(row, rule, of_step, options.steps, threads, report)
                      : std::make_unique<StepRunner>(row, rule, of_step, options.steps, threads);
    results[i] = simulator->simulate(plan.steps[i], i);
    ++done;
    if (!fits(results[i].work, row.models->memory.room_bytes())) full = true;
  };
  if (options.row != nullptr)
    options.row->for_each(steps, simulate);
  else
    parallel_for(jobs, steps, simulate);
  return results;
}

SimulatedPlan simulate_plan(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                            Until until) {
  const auto simulated = [&](std::string_view shard) {
    const ShardRule rule = row.rule(shard);
    return SimulatedPlan{std::string(shard), rule, simulate_steps(row, plan, rule, options, until)};
  };
  if (row.run.rule().choice != ShardChoice::static_best) return simulated(row.run.shard);
  const MemoryModel& memory = row.models->memory;
  SimulatedPlan first = simulated("per-sequence"), other = simulated("per-document");
  const auto fit = [&](const SimulatedPlan& ran) {
    return all_fit(ran.steps, memory.room_bytes()) ? 2 : all_fit(ran.steps, memory.capacity_bytes()) ? 1 : 0;
  };
  const int fit_first = fit(first), fit_other = fit(other);
  const bool stays = fit_first != fit_other ? fit_first > fit_other
                                            : total_seconds(other.steps) >= total_seconds(first.steps);
  return stays ? std::move(first) : std::move(other);
}

double trial_seconds(const StudyRow& row, const Plan& plan, const RunStudyOptions& options) {
  return total_seconds(simulate_steps(row, plan, row.trial_rule(), options, Until::all_steps));
}

double trial_seconds_that_fit(const StudyRow& row, const Plan& plan, const RunStudyOptions& options) {
  const std::vector<StepResult> steps =
      simulate_steps(row, plan, row.trial_rule(), options, Until::first_that_does_not_fit);
  return all_fit(steps, row.models->memory.room_bytes()) ? total_seconds(steps)
                                                         : std::numeric_limits<double>::infinity();
}

std::vector<double> trial_steps_that_fit(const StudyRow& row, const Plan& plan,
                                         const RunStudyOptions& options) {
  std::vector<double> seconds;
  for (const StepResult& step : simulate_steps(row, plan, row.trial_rule(), options, Until::all_steps))
    seconds.push_back(fits(step.work, row.models->memory.room_bytes())
                          ? to_seconds(step.times.makespan)
                          : std::numeric_limits<double>::infinity());
  return seconds;
}

}  // namespace equipoise
