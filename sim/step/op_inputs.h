// The ops of a schedule as scheduled ops of a program: who makes each one's input, and which transfer brings
// it.
#pragma once

#include <vector>

#include "sim/schedule/schedule.h"
#include "sim/step/op_program.h"
#include "sim/workload/layout.h"

namespace equipoise {

// Transfers of a micro-batch, in this order in OpLane::transfers: to the next stage of its way, to the
// previous one, and around the ring of virtual stages.
enum class Hop { next, previous, wrap };
inline constexpr int kHops = 3;

// Writes the lane's scheduled ops, which run no blocks yet. With blocking sends a stage waits for the
// transfer of each result.
void add_scheduled_ops(const Schedule& schedule, const VirtualStages& order, bool blocking_sends,
                       OpLane& lane);

}  // namespace equipoise
