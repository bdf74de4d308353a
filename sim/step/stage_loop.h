// What the loops of every resolution share: waiting on a clock, and going over the stages until all ops have
// run.
#pragma once

#include <algorithm>
#include <cstddef>

#include "policies/base/clock.h"

namespace equipoise {

inline constexpr Picoseconds kUnknown = -1;  // a time that the network has yet to decide

// Moves `clock` up to `end` and returns how long that took.
inline Picoseconds wait_until(Picoseconds& clock, Picoseconds end) {
  const Picoseconds waited = std::max<Picoseconds>(0, end - clock);
  clock += waited;
  return waited;
}

// Calls run(stage) for every stage until none can go on: downwards for forwards, upwards for backwards.
template <class RunReady>
void sweep_stages(std::size_t stages, const RunReady& run_ready) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s) moved |= run_ready(s);
    for (std::size_t s = stages; s-- > 0;) moved |= run_ready(s);
  }
}

}  // namespace equipoise
