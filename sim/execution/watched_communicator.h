// A communicator that tells the watchdog when its rank waits for others.
#pragma once

#include <memory>

#include "kernels/collectives.h"
#include "sim/execution/progress.h"

namespace equipoise::execution {

// Everything goes on to `inner`, and groups that are split off are watched, too. Both outlive what is made.
std::unique_ptr<kernels::Communicator> watched(kernels::Communicator& inner, Progress& progress);

}  // namespace equipoise::execution
