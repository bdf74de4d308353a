// A schedule with the times of its ops, as `schedule` prints and draws it.
#pragma once

#include <vector>

#include "sim/schedule/schedule.h"

namespace equipoise {

struct TimedOp {
  ScheduleOp op;
  double start = 0;
  double end = 0;
  double alone = 0;  // time by itself of an op in a pair; 0 if unknown
};

struct TimedSchedule {
  std::vector<std::vector<TimedOp>> stages;  // ops in order
  double makespan = 0;
  std::vector<double> busy;       // by stage: time of compute
  std::vector<double> recompute;  // by stage: time of R
  std::vector<int> peak_kept;     // by stage: the most activations held at once
};

// 1 - useful time / (stages * makespan). Recompute is not useful time.
double bubble_ratio(const TimedSchedule& timed);

}  // namespace equipoise
