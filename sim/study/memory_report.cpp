#include "sim/study/memory_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/number_text.h"
#include "sim/step/lockstep.h"
#include "sim/study/step_runner.h"
#include "sim/study/study_result.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr double kWorthNaming = 0.05 * kGiB;

std::string gib(double bytes) {
  return fixed(bytes / kGiB, 1);
}

// Whether other lanes have no say in when a lane's ops run.
bool runs_alone(const Layout& layout, const Lane& lane) {
  return !lanes_synchronize(layout) && lane.barrier_group == 0;
}

// The step with the micro-batches of one lane alone.
Step only_lane(const Step& step, std::size_t number) {
  Step alone;
  for (const Lane& lane : step.lanes) alone.lanes.push_back({lane.context, {}, lane.barrier_group});
  alone.lanes[number].micro_batches = step.lanes[number].micro_batches;
  return alone;
}

}  // namespace

PeakMoment find_peak(const Run& run, const PolicyResult& result, const Plan& plan, const ShardRule& rule) {
  PeakMoment moment;
  const MemoryPeak& peak = result.peak;
  for (std::size_t i = 0; i < result.steps.size() && moment.step < 0; ++i)
    if (result.steps[i].work.peak.parts.total() == peak.parts.total()) moment.step = static_cast<int>(i);
  if (moment.step < 0 || peak.op_index < 0) return moment;
  const auto number = static_cast<std::size_t>(moment.step);
  if (run.options.steps.fidelity == Fidelity::op) {
    moment.op = result.steps[number].times.peak_op;
    return moment;
  }
  StepOptions recorded = run.step_options();
  recorded.record_ops = true;
  const Step& whole = plan.steps[number];
  const Step step = runs_alone(run.models.layout, whole.lanes[at(peak.lane)])
                        ? only_lane(whole, static_cast<std::size_t>(peak.lane))
                        : whole;
  const StepTimes again = StepRunner(run, rule, recorded).run(step, number).times;
  const ScheduleOp op{peak.op, peak.micro_batch, peak.virtual_stage};
  const auto found = std::find_if(again.ops.begin(), again.ops.end(), [&](const StageOp& o) {
    return o.lane == peak.lane && o.stage == peak.stage && same_work(o.op, op);
  });
  if (found == again.ops.end()) return moment;
  moment.op = TimeSpan{found->start, found->end};
  return moment;
}

std::string out_of_memory_text(const OutOfMemory& fault) {
  if (fault.before_any_plan)
    return "stage " + std::to_string(fault.stage) + " holds " + gib(fault.need_bytes) + " GiB of " +
           gib(fault.capacity_bytes) + " before any micro-batch: " + fault.reason;
  std::string text = "stage " + std::to_string(fault.stage) + " of lane " + std::to_string(fault.lane) +
                     ", CP rank " + std::to_string(fault.rank) + " in step " + std::to_string(fault.step) +
                     ", micro-batch " + std::to_string(fault.micro_batch);
  if (!fault.reason.empty()) return text + ": " + fault.reason;
  return text + " needs " + gib(fault.need_bytes) + " GiB of " + gib(fault.capacity_bytes);
}

std::string peak_text(const PolicyResult& policy) {
  const MemoryPeak& peak = policy.peak;
  const PeakMoment& moment = policy.peak_moment;
  std::ostringstream text;
  text << gib(peak.parts.total()) << " of " << gib(policy.capacity_bytes) << " GiB on stage " << peak.stage
       << " of lane " << peak.lane << ", CP rank " << peak.rank;
  if (peak.op_index >= 0) {
    text << ", at the " << (peak.at_end ? "end" : "start") << " of " << letter_of(peak.op)
         << peak.micro_batch;
    if (peak.virtual_stage > 0) text << '.' << peak.virtual_stage;
    if (moment.op)
      text << " (" << fixed(to_seconds(peak.at_end ? moment.op->end : moment.op->start), 3) << " s into step "
           << moment.step << ')';
    else if (moment.step >= 0)
      text << " in step " << moment.step;
  }
  std::vector<const MemoryPartName*> parts;
  for (const MemoryPartName& part : kMemoryParts)
    if (peak.parts.*part.bytes >= kWorthNaming) parts.push_back(&part);
  std::stable_sort(parts.begin(), parts.end(), [&](const MemoryPartName* a, const MemoryPartName* b) {
    return peak.parts.*(a->bytes) > peak.parts.*(b->bytes);
  });
  const char* separator = ": ";
  for (const MemoryPartName* part : parts) {
    std::string name = part->key;
    std::replace(name.begin(), name.end(), '_', ' ');
    text << separator << name << ' ' << gib(peak.parts.*(part->bytes));
    separator = ", ";
  }
  return text.str();
}

json memory_json(const PolicyResult& policy) {
  if (policy.capacity_bytes == 0) return nullptr;  // nothing was planned
  const MemoryPeak& peak = policy.peak;
  json node = {{"capacity_bytes", policy.capacity_bytes},
               {"peak_bytes", peak.parts.total()},
               {"stage", peak.stage},
               {"lane", peak.lane},
               {"rank", peak.rank},
               {"micro_batch", peak.micro_batch},
               {"explanation", peak_text(policy)}};
  for (const MemoryPartName& part : kMemoryParts) node[part.key] = peak.parts.*part.bytes;
  if (peak.op_index >= 0) {
    node["op"] = letter_of(peak.op);
    node["virtual_stage"] = peak.virtual_stage;
    node["at"] = peak.at_end ? "end" : "start";
  }
  if (policy.peak_moment.step >= 0) node["step"] = policy.peak_moment.step;
  if (policy.peak_moment.op && policy.simulated()) {
    node["op_start_seconds"] = to_seconds(policy.peak_moment.op->start);
    node["op_end_seconds"] = to_seconds(policy.peak_moment.op->end);
  }
  if (policy.status == RowStatus::oom) {
    const OutOfMemory& fault = policy.memory_fault;
    node["out_of_memory"] = {{"step", fault.step},
                             {"lane", fault.lane},
                             {"stage", fault.stage},
                             {"rank", fault.rank},
                             {"micro_batch", fault.micro_batch},
                             {"need_bytes", fault.need_bytes},
                             {"capacity_bytes", fault.capacity_bytes},
                             {"message", out_of_memory_text(fault)}};
  }
  return node;
}

}  // namespace equipoise
