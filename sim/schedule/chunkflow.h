// State-aware 1F1B (ChunkFlow): 1F1B on groups of dependent chunks.
#pragma once

#include "sim/schedule/schedule.h"

namespace equipoise {

void make_state_aware_1f1b(const ScheduleInput& input, Schedule& out);

}  // namespace equipoise
