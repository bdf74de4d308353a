// The reference executor: exact start and end of every op of a schedule, for the `schedule` command and as
// the yardstick for the engine. One op at a time a stage, transfers of one fixed duration, nothing else. A
// pair (ScheduleOp::with_next) takes as long as its two ops, which start and end together: what they would
// hide is not known here.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/schedule/schedule.h"

namespace equipoise {

// Durations by stage and position in Schedule::ops, in any unit. Sums are exact as long as all are whole
// numbers below 2^53: scale them first where that matters.
using OpDurations = std::vector<std::vector<double>>;

// What `schedule` assumes: F, D and R take forward[micro-batch] / V, B takes backward_ratio times that. Where
// the schedule has Ws, B and W take half of it each, a whole B all of it. In a bidirectional schedule an op
// runs as many layers as without virtual stages.
OpDurations op_durations(const Schedule&, std::span<const double> forward, double backward_ratio);

// A hop goes from one rank to another, the wrap-around of interleaved schedules included.
struct Hops {
  double seconds = 0;     // from the end of an op to its arrival at the next stage
  bool blocking = false;  // the sender stays busy until its transfer has arrived
};

struct TimedOp {
  ScheduleOp op;
  double start = 0;
  double end = 0;
  double alone = 0;  // of a pair: what the op takes by itself; 0: not known
};

struct TimedSchedule {
  std::vector<std::vector<TimedOp>> stages;  // the ops that ran, in order
  double makespan = 0;
  std::vector<double> busy;          // by stage: computing
  std::vector<double> recompute;     // by stage: the part of it that is R
  std::vector<int> peak_kept;        // by stage: most activations held at once
  std::vector<std::string> stalled;  // a line for each stage that could not finish; empty: all ops ran
};

// 1 - useful time / (stages * makespan). Recompute is not useful time.
double bubble_ratio(const TimedSchedule&);

// Runs the schedule. O(ops). Op fields must be in range (see schedule_problems).
TimedSchedule time_schedule(const Schedule&, const OpDurations&, Hops = {});

// "F of micro-batch 3" (from 0), with its virtual stage where there are several.
std::string describe_op(const ScheduleOp&, int virtual_stages);

// The most activations that the order of each stage holds at once, whatever the times (see
// Schedule::kept_bound).
std::vector<int> peak_kept(const Schedule&);

// Whether the schedule splits backwards: then an activation is held until its W, not its B (but for whole
// Bs).
bool splits_backward(const Schedule&);
// Whether the op ends what is held of its micro-batch on its virtual stage.
constexpr bool releases(const ScheduleOp& op, bool splits) {
  return op.kind == (splits ? OpKind::W : OpKind::B) || op.whole;
}

// What is wrong with a schedule of this input; empty means it is right. Checked on every stage:
//   bidirectional: each micro-batch runs on the virtual stage of its direction only;
//   complete: each micro-batch, on each virtual stage, has one F, or one D and one R; one B; one W where the
//     schedule splits backwards and the B is not whole; nothing else;
//   ordered: R after D, B after F or R, W after B; inside a group of dependent chunks the first forwards
//     ascending (a chunk reads the KV of earlier ones), the backwards descending (it needs the KV gradients
//     of later ones);
//   pairs: an F and, next on its stage, the B of another micro-batch; they do not wait for each other, not
//     even over other stages (no deadlock, below);
//   memory: activations held never exceed kept_bound: an F or R holds one until its B (its W, where the
//     schedule splits backwards), a D holds none;
//   no deadlock: run with all stages in this order, every op runs; else what each stuck stage waits for.
// At most 20 problems are listed. O(ops).
std::vector<std::string> schedule_problems(const ScheduleInput&, const Schedule&);

// ---- A timed schedule as text (drawing.cpp): one line a stage, time from left to right ----

struct DrawingStyle {
  int columns = 100;  // of the terminal; at least 40 are used
  bool color = false;
};

// Example (two stages, 1f1b, lengths 1,1): a letter and a number from 1 name op and micro-batch, with a
// letter for the virtual stage where there are several; the fill shows how long it runs, dots are idle.
//   stage 0  F1--F2--........B1======....B2======
//   stage 1  ....F1--B1======F2--B2======........
// The two ops of a pair share its time, by their lengths where those are known, with & between them:
//   stage 1  ....F1--F2--&B1=====
// Where an op is too short for its name only its letter is drawn; what is shorter than a column is left out.
std::string draw_schedule(const TimedSchedule&, int virtual_stages, DrawingStyle);

}  // namespace equipoise
