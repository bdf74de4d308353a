// How long does one call take? Batches of calls are timed until the answer is steady, and batches that were
// disturbed are left out and counted:
//   stolen:    on a CPU, CPU time well below wall time means that the thread was off the processor, and that
//              others have emptied its caches; on a GPU, that it waited for its host
//   throttled: the device's pace before or after the batch was below the best one: of a GPU its clock, more
//              than 3% below the median of this call's (long products hold it under its power limit, not at
//              its peak); of a CPU a tiny product in the first cache, more than 6% below what it usually
//              does (`usual_pace`): a sibling hardware thread, a hypervisor's other guests or heat have a
//              part of the core
// On a CPU such spells last from milliseconds to seconds, and often pass while one waits; `patience_seconds`
// says how long that may take for one call. What remains (cold caches after another's turn, memory that
// others use too) only ever makes a batch slower, so on a shared core the lower quartile of the batches tells
// more than their median: `answer_quantile`. On a CPU the answer is CPU time, on a GPU the time between two
// events. Warm-up comes first and is not counted. Calls walk over several sets of buffers, so that a cache
// does not answer for memory.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

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
  double most_throttled = 0.03;  // share of the pace
  double usual_pace = 0;         // what the pace is held against, besides the call's own batches
  double patience_seconds = 0;   // of wall time, waiting for the usual pace to come back
  double answer_quantile = 0.5;  // of the kept batches
  bool cpu_time = false;         // the answer is CPU time, and the steal test applies
  // A GPU's calls are queued before they run: no more of them than its queue takes, nor than the host issues
  // in this time.
  std::size_t most_calls = std::size_t{1} << 24U;
  double issue_seconds = 1e9;
  bool clock_against_median = false;
};

struct Measurement {
  double seconds = 0;         // one call: the answer's quantile of the kept batches
  double wall_seconds = 0;    // the same by wall clock (equal to `seconds` on a GPU)
  double spread = 0;          // interquartile range over `seconds`
  double pace = 0;            // median over the kept batches; 0: unknown
  std::vector<double> paces;  // one a batch
  double reach_seconds = 0;   // of a collective's ranks (collective_ruler.h); 0: not measured
  double waited_seconds = 0;
  std::size_t calls_per_batch = 0;
  int kept = 0;
  int stolen = 0;
  int throttled = 0;
  bool disturbed = false;  // fewer than three clean batches: all were kept
};

Measurement measure_call(const TimeBatch& time_batch, const std::function<double()>& pace,
                         const RulerOptions& options);

// Times work of known duration with the same ruler.
struct RulerTest {
  double asked_seconds = 0;
  double measured_seconds = 0;
};
RulerTest test_ruler(kernels::Backend& backend, double seconds, const RulerOptions& options);

}  // namespace equipoise::measure
