// What every step of a run is run with, at either fidelity.
#pragma once

#include "sim/schedule/schedule.h"

namespace equipoise {

struct StepOptions {
  const SchedulePolicy* schedule = nullptr;
  int keep = 1;  // ChunkFlow's K
  bool strict_keep = false;
  bool blocking_sends = false;
  bool record_ops = false;   // fill StepTimes::ops and StepWork::lane_tokens
  bool record_gpus = false;  // fill StepTimes::gpu_compute
};

}  // namespace equipoise
