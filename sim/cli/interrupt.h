// Ctrl-C ends a long run cleanly: what is finished is kept and written.
#pragma once

#include <atomic>

namespace equipoise {

// From the first call on, SIGINT and SIGTERM set the flag; a second signal ends the process at once.
const std::atomic<bool>& stop_on_interrupt();

}  // namespace equipoise
