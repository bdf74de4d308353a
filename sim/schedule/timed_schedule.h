// A schedule with the times of its ops, as `schedule` prints and draws it.
#pragma once

#include <vector>

#include "sim/schedule/schedule.h"

namespace equipoise {

struct TimedOp {
  ScheduleOp op;
  double start = 0;
  double end = 0;
  double alone = 0;  // of a pair: what the op takes by itself; 0: not known
};

struct TimedSchedule {
  std::vector<std::vector<TimedOp>> stages;  // the ops in order
  double makespan = 0;
  std::vector<double> busy;       // by stage: computing
  std::vector<double> recompute;  // by stage: the part of it that is R
  std::vector<int> peak_kept;     // by stage: most activations held at once
};

// 1 - useful time / (stages * makespan). Recompute is not useful time.
double bubble_ratio(const TimedSchedule& timed);

}  // namespace equipoise
