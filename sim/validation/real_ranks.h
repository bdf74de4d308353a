// The ranks of a real run, whoever started them: processes under a launcher, or threads that take turns on
// one device.
#pragma once

#include <functional>
#include <string>

#include "sim/validation/real_run.h"

namespace equipoise {

// Calls `body` on every rank that lives in this process. `ranks`: how many the study has. Under a launcher
// that started another number, and for a device that is not here: UserError. `turns`: as threads, one at a
// time.
void on_ranks(int ranks, const std::string& device, bool turns, const execution::HealthLimits& limits,
              const std::function<void(const RealRank&)>& body);

// Whether the body runs in processes that are yet to be started.
bool needs_launcher(int ranks, bool turns);

}  // namespace equipoise
