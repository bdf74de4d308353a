#include "sim/study/step_runner.h"

#include <algorithm>
#include <utility>

#include "policies/base/index.h"
#include "sim/study/hardware.h"

namespace equipoise {
namespace {

std::unique_ptr<Fabric> fabric_of(const Study& study, const RunModels& models) {
  FabricOptions options;
  options.gpus = models.grid.gpus();
  options.gpus_per_node = models.grid.gpus_per_node();
  options.nvlink_GBps = models.costs.profile().device().nvlink_GBps;
  options.nic_GBps = nic_GBps(study.cluster, models.costs.profile());
  options.wiring = study.cluster.wiring;
  options.oversubscription = study.cluster.oversubscription;
  return std::make_unique<Fabric>(options);
}

// Speed by slot of the op program: stage, replica, TP coordinate (one for all of a folded TP group, its
// slowest).
std::vector<double> speeds_of(const OpFidelity& op, const RankGrid& grid) {
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

}  // namespace

StepRunner::StepRunner(const Run& run, const ShardRule& rule, const StepOptions& options, int threads,
                       std::function<void(double)> progress) {
  const RunModels& models = run.models;
  const StepSettings& settings = run.options.steps;
  if (settings.fidelity == Fidelity::stage) {
    stage_ = std::make_unique<StepSimulator>(models.costs, rule, options, &models.memory);
    return;
  }
  if (settings.op.contention) fabric_ = fabric_of(run.study, models);
  OpStepOptions op;
  op.fold_tp = settings.op.fold_tp;
  op.jitter = {settings.op.jitter, settings.op.seed};
  op.speed = speeds_of(settings.op, models.grid);
  op.fabric = fabric_.get();
  op.threads = threads;
  op.progress = std::move(progress);
  op_ = std::make_unique<OpStepSimulator>(models.costs, rule, options, op, &models.memory);
}

StepResult StepRunner::run(const Step& step, std::size_t number) {
  return op_ ? op_->run(step, static_cast<std::int64_t>(number)) : stage_->run(step);
}

}  // namespace equipoise
