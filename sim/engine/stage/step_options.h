// What every step of a run is run with, at either fidelity.
#pragma once

#include "sim/schedule/schedule.h"

namespace equipoise {

struct StepOptions {
  const SchedulePolicy* schedule = nullptr;
  int keep = 1;  // ChunkFlow's K
  bool strict_keep = false;
  bool blocking_sends = false;
  bool pairs = false;        // forward and backward of a turn issued together; always where they hide each
                             // other's exchanges (LayerCosts::pairs_micro_batches)
  bool record_ops = false;   // fill StepTimes::ops and StepWork::lane_tokens
  bool record_gpus = false;  // fill StepTimes::gpu_compute
};

}  // namespace equipoise
