// The clocks that the host's side of a measurement reads. Times are differences: where they start means
// nothing.
#pragma once

#include <time.h>

#include <chrono>

namespace equipoise::kernels {

// The same clock in all processes of a machine.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace equipoise::kernels
