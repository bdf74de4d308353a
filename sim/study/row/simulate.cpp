#include "sim/study/row/simulate.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "policies/base/error.h"
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

bool fits(const WorkSums& step, double capacity_bytes) {
  return step.peak.parts.total() <= capacity_bytes && !step.bucket_broken;
}

bool all_fit(const std::vector<StepFigures>& steps, double capacity_bytes) {
  return std::ranges::all_of(steps, [&](const StepFigures& s) { return fits(s.work, capacity_bytes); });
}

int threads_of_step(int jobs, std::size_t steps) {
  return std::max(1, jobs / static_cast<int>(std::max<std::size_t>(1, steps)));
}

static int threads_of_row(const RunStudyOptions& options) {
  return options.row != nullptr ? options.row->count() : std::max(1, options.jobs);
}

std::size_t steps_of_block(const RunStudyOptions& options) {
  constexpr std::size_t kFewest = 64, kOfThread = 16;
  if (options.steps_of_block > 0) return options.steps_of_block;
  return std::max(kFewest, kOfThread * static_cast<std::size_t>(threads_of_row(options)));
}

// Simulates blocks of steps by one rule, which it refers to. Steps are independent: each worker has its own
// simulator.
class BlockRunner {
 public:
  BlockRunner(const StudyRow& row, const ShardRule& rule, const RunStudyOptions& options, Until until)
      : row_(row),
        rule_(rule),
        options_(options),
        until_(until),
        of_step_(row.step_options()),
        simulators_(static_cast<std::size_t>(threads_of_row(options))) {
    of_step_.record_gpus = options.record_gpus;
  }

  // Calls keep(i, result) for every step of the block that runs, on several threads. `first`: the number of
  // its first step.
  void run(const std::vector<Step>& block, std::size_t first,
           const std::function<void(std::size_t, StepResult)>& keep) {
    const int threads = threads_of_step(threads_of_row(options_), block.size());
    const auto simulate = [&](int worker, std::size_t i) {
      end_if_stopped(options_);
      if (until_ == Until::first_that_does_not_fit && full_) return;
      StepResult result = simulator_of(worker, threads).simulate(block[i], first + i);
      ++done_;
      if (!fits(result.work, row_.models->memory.room_bytes())) full_ = true;
      keep(i, std::move(result));
    };
    if (options_.row != nullptr)
      options_.row->for_each(block.size(), simulate);
    else
      parallel_for(threads_of_row(options_), block.size(), simulate);
  }

 private:
  // Only one worker reports, so that none waits for the terminal.
  StepRunner& simulator_of(int worker, int threads) {
    std::unique_ptr<StepRunner>& own = simulators_[at(worker)];
    if (own) return *own;
    std::function<void(double)> progress;
    if (worker == 0 && options_.progress_of_row) progress = [this](double share) { report(share); };
    own = std::make_unique<StepRunner>(row_, rule_, of_step_, options_.steps, threads, std::move(progress));
    return *own;
  }

  // As a rule, a plan has as many steps as there are batches.
  void report(double share_of_step) const {
    const double done = static_cast<double>(done_) + share_of_step;
    options_.progress_of_row(done / std::max(done, static_cast<double>(row_.documents.batches.size())));
  }

  const StudyRow& row_;
  const ShardRule& rule_;
  const RunStudyOptions& options_;
  Until until_;
  StepOptions of_step_;
  std::vector<std::unique_ptr<StepRunner>> simulators_;  // by worker
  std::atomic<bool> full_ = false;
  std::atomic<std::size_t> done_ = 0;
};

namespace {

double total_seconds(const SimulatedPlan& ran) {
  return sum_of(ran.steps, [](const StepFigures& step) { return to_seconds(step.times.makespan); });
}

// The seconds of each step of a trial; if it `must_fit`, infinite where it does not leave the headroom free.
std::vector<double> trial_steps(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                                Until until, bool must_fit) {
  const ShardRule rule = row.trial_rule();
  std::vector<double> seconds(plan.steps.size());
  BlockRunner(row, rule, options, until).run(plan.steps, 0, [&](std::size_t i, const StepResult& step) {
    seconds[i] = must_fit && !fits(step.work, row.models->memory.room_bytes())
                     ? std::numeric_limits<double>::infinity()
                     : to_seconds(step.times.makespan);
  });
  return seconds;
}

bool sees_whole_set(const PolicyRun& run) {
  return run.has_plan_file() ? run.plan->sees_whole_set : run.policy().sees_whole_set;
}

}  // namespace

void SimulatedPlan::add(const Step& step, StepFigures figures) {
  if (const double bytes = figures.work.peak.parts.total(); bytes > most_bytes) {
    most_bytes = bytes;
    fullest = step;
  }
  steps.push_back(std::move(figures));
}

// The row's plan by one rule.
struct PlanSimulator::ByRule {
  ByRule(const StudyRow& row, std::string_view shard, const RunStudyOptions& options, Until until)
      : plan{std::string(shard), row.rule(shard), {}, {}}, runner(row, plan.rule, options, until) {}

  SimulatedPlan plan;
  BlockRunner runner;
};

PlanSimulator::PlanSimulator(const StudyRow& row, const RunStudyOptions& options, Until until) : row_(row) {
  if (!sees_whole_set(row.run)) arrivals_.emplace(row.documents.batches);
  const bool both = row.run.rule().choice == ShardChoice::static_best;
  rules_.push_back(std::make_unique<ByRule>(row, both ? "per-sequence" : row.run.shard, options, until));
  if (both) rules_.push_back(std::make_unique<ByRule>(row, "per-document", options, until));
}

PlanSimulator::~PlanSimulator() = default;

void PlanSimulator::simulate(const std::vector<Step>& block) {
  if (refused_) return;
  const Arrivals* const arrivals = arrivals_ ? &*arrivals_ : nullptr;
  std::vector<std::optional<StepOfPlan>> of_plan(block.size());  // the same by both rules
  try {
    for (const std::unique_ptr<ByRule>& by : rules_) {
      const std::size_t first = by->plan.steps.size();
      std::vector<StepFigures> figures(block.size());
      by->runner.run(block, first, [&](std::size_t i, StepResult result) {
        if (!of_plan[i]) of_plan[i] = step_of_plan(block[i], first + i, arrivals);
        figures[i] = step_figures(block[i], *of_plan[i], std::move(result));
      });
      for (std::size_t i = 0; i < block.size(); ++i) by->plan.add(block[i], std::move(figures[i]));
    }
  } catch (const UserError&) {
    refused_ = std::current_exception();
  }
}

SimulatedPlan PlanSimulator::finish() {
  if (refused_) std::rethrow_exception(refused_);
  SimulatedPlan& first = rules_.front()->plan;
  if (rules_.size() == 1) return std::move(first);
  SimulatedPlan& other = rules_.back()->plan;
  const MemoryModel& memory = row_.models->memory;
  const auto fit = [&](const SimulatedPlan& ran) {
    return all_fit(ran.steps, memory.room_bytes()) ? 2 : all_fit(ran.steps, memory.capacity_bytes()) ? 1 : 0;
  };
  const int fit_first = fit(first), fit_other = fit(other);
  const bool stays =
      fit_first != fit_other ? fit_first > fit_other : total_seconds(other) >= total_seconds(first);
  return std::move(stays ? first : other);
}

SimulatedPlan simulate_plan(const StudyRow& row, const Plan& plan, const RunStudyOptions& options,
                            Until until) {
  PlanSimulator simulator(row, options, until);
  simulator.simulate(plan.steps);
  return simulator.finish();
}

double trial_seconds(const StudyRow& row, const Plan& plan, const RunStudyOptions& options) {
  return sum_of(trial_steps(row, plan, options, Until::all_steps, false));
}

double trial_seconds_that_fit(const StudyRow& row, const Plan& plan, const RunStudyOptions& options) {
  return sum_of(trial_steps(row, plan, options, Until::first_that_does_not_fit, true));
}

std::vector<double> trial_steps_that_fit(const StudyRow& row, const Plan& plan,
                                         const RunStudyOptions& options) {
  return trial_steps(row, plan, options, Until::all_steps, true);
}

}  // namespace equipoise
