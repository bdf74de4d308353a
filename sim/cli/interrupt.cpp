#include "sim/cli/interrupt.h"

#include <csignal>

namespace equipoise {
namespace {

std::atomic<bool> stop_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void on_signal(int signal_number) {
  stop_wanted = true;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& stop_on_interrupt() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  return stop_wanted;
}

}  // namespace equipoise
