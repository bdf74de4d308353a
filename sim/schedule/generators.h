// The generators behind the table of schedules, and what they share. Each writes `out` whole, reusing its
// buffers, and throws UserError where the input does not suit it. O(ops) time, no memory beyond the ops.
#pragma once

#include <string_view>

#include "sim/schedule/schedule.h"

namespace equipoise {

void make_gpipe(const ScheduleInput&, Schedule& out);
void make_1f1b(const ScheduleInput&, Schedule& out);
void make_interleaved_1f1b(const ScheduleInput&, Schedule& out);
void make_state_aware_1f1b(const ScheduleInput&, Schedule& out);
void make_zb_h1(const ScheduleInput&, Schedule& out);
void make_dualpipe(const ScheduleInput&, Schedule& out);
// ChunkFlow without a pipeline: what state-aware-1f1b is on one stage.
void make_chunkflow_serial(const ScheduleInput&, Schedule& out);

// What a schedule can take besides a plain list of micro-batches.
struct Takes {
  bool virtual_stages = false;
  bool groups = false;  // of dependent chunks
};

// Checks the input against what schedule `name` takes, shapes `out` with no ops yet, returns the number of
// micro-batches.
int begin_schedule(const ScheduleInput&, std::string_view name, Takes, Schedule& out);

}  // namespace equipoise
