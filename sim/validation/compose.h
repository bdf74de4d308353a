// Steps of a replay: ranks ran one after the other on one device, so their ops are put together by the op
// program. Kernels take what was measured of them, collectives and transfers what the profile says.
#pragma once

#include "sim/validation/real_run.h"

namespace equipoise {

// Sets `seconds` of every timed step of the row.
void compose_steps(const RealRow& row, RealResult& result);

}  // namespace equipoise
