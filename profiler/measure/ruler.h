// How long does one call take? Batches of calls are timed until the answer is steady, and batches that were
// disturbed are left out and counted:
//   stolen:    on a CPU, CPU time well below wall time means that the thread was off the processor, and that
//              others have emptied its caches; on a GPU the clock below tells
//   throttled: the device's clock was more than 3% below the fastest clock seen for this call
// On a CPU the answer is CPU time, on a GPU the time between two events. Warm-up comes first and is not
// counted. Calls walk over several sets of buffers, so that a cache does not answer for memory.
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/backend.h"

namespace equipoise::measure {

// Runs `count` calls, the first on buffer set `first`, and says how long they took together.
using TimeBatch = std::function<kernels::Elapsed(std::size_t first, std::size_t count)>;

struct RulerOptions {
  double batch_seconds = 1e-3;   // calls are repeated until a batch lasts this long
  int enough_batches = 9;        // undisturbed ones
  int most_batches = 40;         // then take what there is
  double budget_seconds = 0.25;  // of wall time; at least three batches are taken all the same
  double most_stolen = 0.05;     // share of wall time
  double most_throttled = 0.03;  // share of the clock
  bool cpu_time = false;         // the answer is CPU time, and the steal test applies
};

struct Measurement {
  double seconds = 0;       // one call: median over the kept batches
  double wall_seconds = 0;  // the same by wall clock (equal to `seconds` on a GPU)
  double spread = 0;        // interquartile range over median
  double clock_mhz = 0;     // median over the kept batches; 0: unknown
  std::size_t calls_per_batch = 0;
  int kept = 0;
  int stolen = 0;
  int throttled = 0;
  bool disturbed = false;  // fewer than three clean batches: all were kept
};

Measurement measure_call(const TimeBatch& time_batch, const std::function<double()>& clock_mhz,
                         const RulerOptions& options);

// Times work of known duration with the same ruler.
struct RulerTest {
  double asked_seconds = 0;
  double measured_seconds = 0;
};
RulerTest test_ruler(kernels::Backend& backend, double seconds, const RulerOptions& options);

}  // namespace equipoise::measure
