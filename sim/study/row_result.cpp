#include "sim/study/row_result.h"

#include <algorithm>
#include <utility>

#include "policies/base/utf8.h"
#include "policies/skrull/gds.h"

namespace equipoise {
namespace {

double peak_flops(const Study& study, const DeviceFacts& device) {
  const bool fp8 = study.layout.precision == Precision::fp8 && device.peak_fp8_tflops > 0;
  return (fp8 ? device.peak_fp8_tflops : device.peak_bf16_tflops) * 1e12;
}

// The largest peak of all steps, and the first step that does not fit.
void judge_memory(PolicyResult& result) {
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const StepWork& step = result.steps[i].work;
    const double need = step.peak.parts.total();
    if (need > result.peak.parts.total()) result.peak = step.peak;
    if (result.status == RowStatus::oom || fits(step, result.capacity_bytes)) continue;
    result.status = RowStatus::oom;
    OutOfMemory& fault = result.memory_fault;
    fault.step = static_cast<int>(i);
    fault.lane = step.peak.lane;
    fault.stage = step.peak.stage;
    fault.rank = step.peak.rank;
    fault.micro_batch = step.peak.micro_batch;
    fault.need_bytes = need;
    fault.capacity_bytes = result.capacity_bytes;
    if (step.bucket_broken)
      fault.reason = "a CP rank holds more than its bucket of " +
                     std::to_string(std::as_const(result.run.pack).of<SkrullOptions>().bucket_size) +
                     " tokens";
  }
  result.metrics.peak_memory_bytes = result.peak.parts.total();
  if (result.status == RowStatus::oom) result.reason = out_of_memory_text(result.memory_fault);
}

// Mean over full steps; over all where there are only tails.
void average_gpus(const Plan& plan, PolicyResult& result) {
  const bool any_full =
      std::any_of(result.tail.begin(), result.tail.end(), [](char tail) { return tail == 0; });
  double steps = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const std::vector<double>& seconds = result.steps[i].times.gpu_compute;
    if ((plan.steps[i].tail && any_full) || seconds.empty()) continue;
    result.gpu_compute.resize(seconds.size(), 0);
    for (std::size_t g = 0; g < seconds.size(); ++g) result.gpu_compute[g] += seconds[g];
    ++steps;
  }
  for (double& seconds : result.gpu_compute) seconds /= steps;
  const Layout& l = result.layout;
  result.gpu_tensor = static_cast<int>(result.gpu_compute.size()) / (l.pipeline * l.data * l.context);
}

// A run that does not fit has no step time; what follows from the plan alone stays.
Metrics without_times(const Metrics& m) {
  Metrics kept;
  static_cast<PlanMetrics&>(kept) = m;
  kept.peak_memory_bytes = m.peak_memory_bytes;
  return kept;
}

}  // namespace

PolicyResult describe_row(const Run& run, PlannedRow planned, SimulatedPlan simulated) {
  const RunModels& models = run.models;
  const Plan& plan = planned.plan;
  PolicyResult result;
  result.run = run.row;
  result.pack_ms = planned.pack_ms;
  result.notes = std::move(planned.notes);
  result.steps = std::move(simulated.steps);
  result.capacity_bytes = models.memory.capacity_bytes();
  result.layout = models.layout;
  result.gpus_per_node = models.grid.gpus_per_node();
  result.metrics =
      metrics_of({run.study.model, models.layout, peak_flops(run.study, models.costs.profile().device()),
                  run.documents.batches, plan, result.steps,
                  rows_at_a_time(run.study, run.options) > 1 ? 1 : run.options.jobs});
  for (const StepResult& s : result.steps) result.use += s.work.use;
  for (const Step& s : plan.steps) result.tail.push_back(s.tail);
  const auto note = [&](const std::string& text) { result.notes.push_back(run.row.label + ": " + text); };
  if (run.row.rule().choice == ShardChoice::static_best) note("static-best sharding is " + simulated.shard);
  if (std::any_of(result.steps.begin(), result.steps.end(),
                  [](const StepResult& s) { return s.work.unsynchronized_lanes; }))
    note(
        "lanes that share experts or gradients order their chunks differently, which no framework can run: "
        "their exchanges do not wait for each other");
  if (run.options.record_gpus) average_gpus(plan, result);
  judge_memory(result);
  result.peak_moment = find_peak(run, result, plan, run.rule(simulated.shard));
  if (result.status == RowStatus::oom) {
    result.memory_ignored = run.options.ignore_memory;
    if (!run.options.ignore_memory) result.metrics = without_times(result.metrics);
  }
  result.plan = std::move(planned.plan);
  return result;
}

PolicyResult without_room(const RunModels& models, PolicyRun row, const std::string& reason) {
  PolicyResult result;
  for (int s = 0; s < models.layout.pipeline; ++s) {
    const MemoryParts held = models.memory.fixed(s);
    if (s > 0 && held.total() <= result.peak.parts.total()) continue;
    result.peak.parts = held;
    result.peak.stage = s;
  }
  result.status = RowStatus::oom;
  result.capacity_bytes = models.memory.capacity_bytes();
  result.memory_fault.stage = result.peak.stage;
  result.memory_fault.need_bytes = result.peak.parts.total();
  result.memory_fault.capacity_bytes = result.capacity_bytes;
  result.memory_fault.reason = reason;
  result.memory_fault.before_any_plan = true;
  result.reason = out_of_memory_text(result.memory_fault);
  result.metrics.peak_memory_bytes = result.peak.parts.total();
  result.plan.policy = row.name;
  result.run = std::move(row);
  return result;
}

PolicyResult not_run(PolicyRun row, RowStatus status, const std::string& reason) {
  PolicyResult result;
  result.status = status;
  result.reason = printable(reason);  // it names files
  result.plan.policy = row.name;
  result.run = std::move(row);
  return result;
}

}  // namespace equipoise
