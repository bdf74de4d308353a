// Times a schedule whose ops have known durations: for `schedule`, and to find a schedule that deadlocks. The
// schedule becomes an op program of one lane on one rank, in which each op is one kernel, and the engine of
// the op fidelity runs it (op_run.h). A pair (ScheduleOp::with_next) takes as long as its two ops, which
// start and end together: what they would hide is not known here.
#pragma once

#include <span>
#include <vector>

#include "sim/schedule/schedule.h"
#include "sim/schedule/timed_schedule.h"

namespace equipoise {

// Durations by stage and position in Schedule::ops, in any unit. Sums are exact as long as all are whole
// numbers below 2^52: scale them first where that matters.
using OpDurations = std::vector<std::vector<double>>;

// The durations that `schedule` assumes: F, D and R take forward[micro-batch] / V, B takes backward_ratio
// times that. If the schedule has Ws, B and W take half of it each and a whole B all of it. In a
// bidirectional schedule an op runs as many layers as without virtual stages.
OpDurations op_durations(const Schedule& schedule, std::span<const double> forward, double backward_ratio);

// A hop goes from one rank to another, the wrap-around of interleaved schedules included.
struct Hops {
  double time = 0;        // from the end of an op to its arrival at the next stage
  bool blocking = false;  // the sender stays busy until its transfer has arrived
};

// O(ops). Throws EngineError, saying who waits for whom, if the schedule cannot run. Op fields must be in
// range (see schedule_problems).
TimedSchedule time_schedule(const Schedule& schedule, const OpDurations& durations, Hops hops = {});

}  // namespace equipoise
