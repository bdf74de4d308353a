// DualPipe: micro-batches enter at both ends of the pipeline.
#pragma once

#include "sim/schedule/schedule.h"

namespace equipoise {

void make_dualpipe(const ScheduleInput& input, Schedule& out);

}  // namespace equipoise
