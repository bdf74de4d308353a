#include "sim/study/run.h"

#include "policies/packing/chunkflow.h"
#include "sim/cost/profiled_workload.h"
#include "sim/study/read/policy_run.h"

namespace equipoise {

ShardRule Run::rule(std::string_view shard) const {
  ShardRule rule;
  rule.fixed = &sharding_policy(shard);
  rule.choice = rule.fixed->choice;
  rule.options = row.sharding;
  rule.options.workload = &workload;
  return rule;
}

ShardRule Run::trial_rule() const {
  return rule(row.rule().choice == ShardChoice::static_best ? "adaptive" : row.shard);
}

StepOptions Run::step_options() const {
  StepOptions steps;
  steps.schedule = &schedule_policy(row.schedule.empty() ? study.schedule : row.schedule);
  const ChunkflowOptions& chunkflow = row.pack.of<ChunkflowOptions>();
  steps.keep = chunkflow.keep;
  steps.strict_keep = chunkflow.strict_keep;
  return steps;
}

FlopsWorkload flops_workload(const ModelShape& model) {
  return {model.hidden, std::int64_t{model.kv_heads} * model.head_dim};
}

std::unique_ptr<Workload> workload_of(const Study& study, const RunModels& models, const PolicyRun& row) {
  switch (cost_kind(row)) {
    case CostKind::quadratic:
      return std::make_unique<QuadraticWorkload>();
    case CostKind::flops:
      return std::make_unique<FlopsWorkload>(flops_workload(study.model));
    case CostKind::profiled:
      break;
  }
  return std::make_unique<ProfiledWorkload>(models.costs, study.batch.context_window);
}

}  // namespace equipoise
