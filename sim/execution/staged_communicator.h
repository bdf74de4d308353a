// Ranks on one device communicate through host memory: values of the backend's type travel there as floats
// and come back. It serves replays, whose collectives are not timed.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/collectives.h"

namespace equipoise::execution {

// Keeps references, so host and backend must outlive it. Groups that are split off are of the same kind.
std::unique_ptr<kernels::Communicator> staged(kernels::Communicator& host, kernels::Backend& backend);

}  // namespace equipoise::execution
