// Orders of micro-batches that go through the stages from the first to the last; one_way.cpp derives each.
#pragma once

#include "sim/schedule/schedule.h"

namespace equipoise {

void make_gpipe(const ScheduleInput& input, Schedule& out);
void make_1f1b(const ScheduleInput& input, Schedule& out);
void make_interleaved_1f1b(const ScheduleInput& input, Schedule& out);
void make_seq1f1b(const ScheduleInput& input, Schedule& out);
void make_zb_h1(const ScheduleInput& input, Schedule& out);

}  // namespace equipoise
