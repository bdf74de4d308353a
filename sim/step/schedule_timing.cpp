#include "sim/step/schedule_timing.h"

#include <cassert>
#include <cmath>

#include "policies/base/index.h"
#include "sim/step/op_inputs.h"
#include "sim/step/op_run.h"

namespace equipoise {

OpDurations op_durations(const Schedule& schedule, std::span<const double> forward, double backward_ratio) {
  assert(forward.size() == at(schedule.micro_batches));
  const double half = splits_backward(schedule) ? 0.5 : 1.0;
  const int parts = schedule.bidirectional ? 1 : schedule.virtual_stages;  // parts that a rank's layers have
  OpDurations durations(schedule.ops.size());
  for (std::size_t s = 0; s < schedule.ops.size(); ++s)
    for (const ScheduleOp& op : schedule.ops[s]) {
      const double one = forward[at(op.micro_batch)] / parts;
      const bool backward = op.kind == OpKind::B || op.kind == OpKind::W;
      durations[s].push_back(backward ? one * backward_ratio * (op.whole ? 1.0 : half) : one);
    }
  return durations;
}

// The clock's ticks in a unit of time: the largest power of two with which all ops and hops, one after
// another, take less than 2^52 ticks. So whole numbers stay exact, and others are rounded as a double is.
static double ticks_of(const OpDurations& durations, Hops hops) {
  double sum = 0;
  for (const std::vector<double>& stage : durations)
    for (const double duration : stage) sum += duration + hops.time;
  return sum > 0 ? std::exp2(52 - std::ceil(std::log2(sum))) : 1;
}

static OpProgram program_of(const Schedule& schedule, const OpDurations& durations, Hops hops, double ticks) {
  OpProgram program;
  program.stages = schedule.stages;
  OpLane& lane = program.lanes.emplace_back();
  lane.stages.resize(schedule.ops.size());
  lane.transfers.assign(at(schedule.micro_batches) * kHops, std::llround(hops.time * ticks));
  const int blocks = schedule.bidirectional ? schedule.stages : schedule.stages * schedule.virtual_stages;
  add_scheduled_ops(schedule, {schedule.stages, blocks, schedule.bidirectional}, hops.blocking, lane);
  for (std::size_t s = 0; s < lane.stages.size(); ++s)
    for (std::size_t i = 0; i < lane.stages[s].size(); ++i) {
      // The first of a pair runs the blocks of both.
      ScheduledOp& runs_it = lane.stages[s][ends_pair(lane.stages[s], i) ? i - 1 : i];
      if (runs_it.run_count++ == 0) runs_it.first_run = static_cast<std::uint32_t>(lane.runs.size());
      lane.runs.push_back({static_cast<std::uint32_t>(lane.blocks.size())});
      OpBlock& block = lane.blocks.emplace_back();
      block.steps.emplace_back();
      block.durations.push_back(std::llround(durations[s][i] * ticks));
    }
  return program;
}

TimedSchedule time_schedule(const Schedule& schedule, const OpDurations& durations, Hops hops) {
  const double ticks = ticks_of(durations, hops);
  const OpResult result = run(program_of(schedule, durations, hops, ticks));
  const auto time_of = [&](Picoseconds clock) { return static_cast<double>(clock) / ticks; };
  TimedSchedule timed;
  timed.makespan = time_of(result.makespan);
  timed.peak_kept = peak_kept(schedule);
  for (std::size_t s = 0; s < schedule.ops.size(); ++s) {
    const std::vector<ScheduleOp>& ops = schedule.ops[s];
    std::vector<TimedOp>& stage = timed.stages.emplace_back();
    double busy = 0, recompute = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const bool paired = ops[i].with_next || (i > 0 && ops[i - 1].with_next);
      stage.push_back({ops[i], time_of(result.lanes[0].start[s][i]), time_of(result.lanes[0].end[s][i]),
                       paired ? durations[s][i] : 0});
      busy += durations[s][i];
      if (ops[i].kind == OpKind::R) recompute += durations[s][i];
    }
    timed.busy.push_back(busy);
    timed.recompute.push_back(recompute);
  }
  return timed;
}

}  // namespace equipoise
