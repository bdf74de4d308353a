#include "sim/cli/schedule_profiled.h"

#include <algorithm>

#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/step/step_simulator.h"

namespace equipoise {
namespace {

Layout layout_for(const ProfiledRun& run, const Schedule& schedule) {
  Layout layout;
  layout.tensor = run.tensor;
  layout.pipeline = schedule.stages;
  layout.virtual_pipeline = schedule.virtual_stages;
  layout.recompute = Recompute::none;
  return layout;
}

TimedSchedule from_ops(const std::vector<StageOp>& ops, const Schedule& schedule) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  TimedSchedule timed;
  timed.stages.resize(stages);
  timed.busy.assign(stages, 0);
  timed.recompute.assign(stages, 0);
  timed.peak_kept = peak_kept(schedule);
  for (const StageOp& op : ops) {
    const auto s = static_cast<std::size_t>(op.stage);
    const bool ends_pair = !timed.stages[s].empty() && timed.stages[s].back().op.with_next;
    timed.stages[s].push_back({op.op, to_seconds(op.start), to_seconds(op.end)});
    const double duration = ends_pair ? 0 : to_seconds(op.end - op.start);
    timed.busy[s] += duration;
    if (op.op.kind == OpKind::R) timed.recompute[s] += duration;
    timed.makespan = std::max(timed.makespan, to_seconds(op.end));
  }
  return timed;
}

}  // namespace

TimedSchedule time_by_profile(const ProfiledRun& run, std::string_view name, const Schedule& schedule,
                              std::span<const MicroBatch> micro_batches) {
  StepOptions options;
  options.schedule = &one_way_schedule(name);
  const ModelShape& model = builtin_model(run.model);
  const Layout layout = layout_for(run, schedule);
  check_layout(model, layout, "schedule");
  const Profile profile = Profile::load(run.profile);
  const RankGrid grid(layout.order, {.tensor = layout.tensor, .pipeline = layout.pipeline},
                      profile.device().gpus_per_node);
  const LayerCosts costs(model, layout, profile, grid, NetworkRates{}, FrameworkOptions{});
  ShardRule rule;  // one CP rank: every rule gives it everything
  rule.fixed = &sharding_policy("per-document");
  options.keep = run.keep;
  options.strict_keep = run.strict_keep;
  options.pairs = run.pairs;
  options.record_ops = true;

  Step step;
  step.lanes.emplace_back().micro_batches.assign(micro_batches.begin(), micro_batches.end());
  return from_ops(StepSimulator(costs, rule, options, nullptr).run(step).times.ops, schedule);
}

}  // namespace equipoise
