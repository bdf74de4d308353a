// Communicators that wrap another one, which does the work. They keep references, so the wrapped communicator
// and all arguments must outlive them. Groups that are split off are of the same kind.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/rank_health.h"

namespace equipoise::execution {

// Records in `progress` when its rank waits for others.
std::unique_ptr<kernels::Communicator> watched(kernels::Communicator& inner, Progress& progress);

// Ranks on one device communicate through host memory: values of the backend's type travel there as floats
// and come back. It serves replays, whose collectives are not timed.
std::unique_ptr<kernels::Communicator> staged(kernels::Communicator& host, kernels::Backend& backend);

}  // namespace equipoise::execution
