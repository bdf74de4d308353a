// The documents of a study: a recorded file, a published distribution, a mixture, or one length for all.
#pragma once

#include "sim/study/read/study.h"
#include "traces/trace.h"

namespace equipoise {

// Throws UserError. `documents` is how many a source without an end must give.
Trace load_trace(const Study& study);

}  // namespace equipoise
