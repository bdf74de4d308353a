// What is wrong with a schedule.
#pragma once

#include <string>
#include <vector>

#include "sim/schedule/schedule.h"

namespace equipoise {

// What is wrong with a schedule of this input; empty means it is right. Checked on every stage:
//   bidirectional: each micro-batch runs on the virtual stage of its direction only;
//   complete: each micro-batch, on each virtual stage, has one F, or one D and one R; one B; one W where the
//     schedule splits backwards and the B is not whole; nothing else;
//   ordered: R after D, B after F or R, W after B; inside a group of dependent chunks the first forwards
//     ascending (a chunk reads the KV of earlier ones), the backwards descending (it needs the KV gradients
//     of later ones);
//   pairs: an F and, next on its stage, the B of another micro-batch; they do not wait for each other, not
//     even over other stages (no deadlock, below);
//   memory: activations held never exceed kept_bound: an F or R holds one until its B (its W, where the
//     schedule splits backwards), a D holds none;
//   no deadlock: run with all stages in this order, every op runs; else who waits for whom.
// At most 20 problems are listed. O(ops).
std::vector<std::string> schedule_problems(const ScheduleInput& input, const Schedule& schedule);

}  // namespace equipoise
