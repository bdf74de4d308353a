// The clock that the host's side of a measurement reads. Times are differences: where it starts means
// nothing.
#pragma once

#include <chrono>

namespace equipoise::kernels {

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace equipoise::kernels
