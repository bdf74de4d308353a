// The options of every step of a run, at either fidelity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/layout.h"

namespace equipoise {

struct StepOptions {
  const SchedulePolicy* schedule = nullptr;
  int keep = 1;  // ChunkFlow's K
  bool strict_keep = false;
  bool blocking_sends = false;
  bool pairs = false;        // Forward and backward of a turn are issued together; always so if they hide
                             // each other's exchanges (CostBasis::pairs_micro_batches).
  bool record_ops = false;   // fill StepTimes::ops and StepWork::lane_tokens
  bool record_gpus = false;  // fill StepTimes::gpu_compute
};

// The input of the study's schedule for a lane. `sizes` becomes the sizes of its groups of dependent chunks,
// to which the input refers.
ScheduleInput schedule_input(std::span<const MicroBatch> micro_batches, const Layout& layout,
                             const StepOptions& options, std::vector<std::int32_t>& sizes);
// The ops of a lane on the stages of the pipeline, made by that schedule.
Schedule schedule_of(std::span<const MicroBatch> micro_batches, const Layout& layout,
                     const StepOptions& options);

}  // namespace equipoise
