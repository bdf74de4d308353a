// Communicators around another one, which does the work. They keep references; both it and what they are
// given outlive them. Groups that are split off are of the same kind.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/rank_health.h"

namespace equipoise::execution {

// Notes in `progress` while its rank waits for others.
std::unique_ptr<kernels::Communicator> watched(kernels::Communicator& inner, Progress& progress);

// Ranks of one device talk through host memory: device memory of the backend's type goes to the host as
// floats, travels there, and comes back. For replays, whose collectives are not timed.
std::unique_ptr<kernels::Communicator> staged(kernels::Communicator& host, kernels::Backend& backend);

}  // namespace equipoise::execution
