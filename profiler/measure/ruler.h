// Measures the time of one call. Batches of calls are timed until the answer is steady. Disturbed batches are
// dropped and counted:
//   stolen:    CPU time well below wall time means on a CPU that the thread was off the processor and lost
//              its caches to others, and on a GPU that it waited for its host
//   throttled: the device's pace before or after the batch was low. A GPU's pace is its clock, which may be
//              up to 3% below the median of this call's batches (long products hold it under its power
//              limit, not at its peak). A CPU's pace is the speed of a tiny product in the first cache, which
//              may be up to 6% below its usual one (`usual_pace`): a sibling hardware thread, other guests of
//              a hypervisor or heat slow the core
// On a CPU such spells last from milliseconds to seconds; the ruler waits for their end, up to
// `patience_seconds` per call. Other disturbances (cold caches after another process ran, shared memory
// bandwidth) only make a batch slower, so on a shared core the lower quartile of the batches is a better
// answer than their median
// (`answer_quantile`). On a CPU the answer is CPU time, on a GPU the time between two
// events. Warm-up calls are not counted. Calls take several sets of buffers in turn, so that data does not
// stay in a cache.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "profiler/measure/points.h"

namespace equipoise::measure {

class RandomPool;

// Runs `count` calls, the first on buffer set `first`, and returns their time together.
using TimeBatch = std::function<kernels::Elapsed(std::size_t first, std::size_t count)>;

struct RulerOptions {
  double batch_seconds = 1e-3;   // calls are repeated until a batch lasts this long
  int enough_batches = 9;        // undisturbed batches that suffice
  int most_batches = 40;         // the ruler stops after so many, disturbed or not
  double budget_seconds = 0.25;  // of wall time; three batches are taken in any case
  double most_stolen = 0.05;     // share of wall time
  double most_throttled = 0.03;  // share of the pace
  double usual_pace = 0;         // the pace is compared with this and with the call's other batches
  double patience_seconds = 0;   // wall time to wait for the usual pace
  double answer_quantile = 0.5;  // quantile of the kept batches that is the answer
  bool cpu_time = false;         // the answer is CPU time, and the steal test applies
  // A GPU's calls are queued before they run. A batch has at most as many as the queue takes and as the host
  // issues in `issue_seconds`.
  std::size_t most_calls = std::size_t{1} << 24U;
  double issue_seconds = 1e9;
  bool clock_against_median = false;
};

struct Measurement {
  double seconds = 0;         // one call, at the answer's quantile of the kept batches
  double wall_seconds = 0;    // the same by wall clock (equal to `seconds` on a GPU)
  double spread = 0;          // interquartile range over `seconds`
  double pace = 0;            // median over the kept batches; 0: unknown
  std::vector<double> paces;  // one a batch
  double reach_seconds = 0;   // of a collective's ranks (below); 0: not measured
  double waited_seconds = 0;
  std::size_t calls_per_batch = 0;
  int kept = 0;
  int stolen = 0;
  int throttled = 0;
  bool disturbed = false;  // fewer than three batches were clean, so all were kept
};

Measurement measure_call(const TimeBatch& time_batch, const std::function<double()>& pace,
                         const RulerOptions& options);

// Times work of known duration with the same ruler.
struct RulerTest {
  double asked_seconds = 0;
  double measured_seconds = 0;
};
RulerTest test_ruler(kernels::Backend& backend, double seconds, const RulerOptions& options);

// --- The usual pace of a core.
//
// A shared core has spells of a lower pace. The usual pace is the 95th percentile of all readings: it is the
// pace of an undisturbed core as long as a twentieth of the readings were undisturbed, and single outliers do
// not move it. On a core that is always disturbed it is the pace nearest to an undisturbed one.

// A CPU core whose pace is lower by more than this share is disturbed. Readings of an undisturbed core differ
// by at most four percent.
inline constexpr double kMostThrottled = 0.06;

class PaceLog {
 public:
  void add(double pace) {
    if (!(pace > 0)) return;
    ++readings_of_[static_cast<int>(std::lround(std::log(pace) / kStep))];
    ++readings_;
  }

  // Accurate to half a percent; 0 without readings.
  [[nodiscard]] double usual() const {
    std::size_t above = 0;
    for (auto bin = readings_of_.rbegin(); bin != readings_of_.rend(); ++bin) {
      above += bin->second;
      if (20 * above >= readings_) return std::exp(kStep * bin->first);
    }
    return 0;
  }

 private:
  static constexpr double kStep = 0.005;  // bin width of the logarithm
  std::map<int, std::size_t> readings_of_;
  std::size_t readings_ = 0;
};

// --- The time of a collective, measured on every rank of a group.
//
// GPUs are timed as nccl-tests does: batches of calls between barriers, averaged over ranks, the median over
// batches.
//
// CPUs are timed one call at a time, as a step runs them. Calls back to back would differ from those of a
// step: buffers would still lie in every core's cache, and a call would wait for ranks that were late in the
// previous one. So before each call every rank writes its send buffer again, as the previous op of a step
// would, and the ranks wait for each other. Each notes when it arrives and when it leaves. The call's time is
// from the *last* arrival to a rank's leaving, averaged over ranks, since the step already counts the wait
// for others. Calls take several pairs of buffers in turn.
//
// A call during which a rank was off its processor is dropped and counted; the ruler's quantile of the others
// is the answer. The measurement also records the ranks' *reach*, the time of a barrier at that moment. A
// hypervisor moves its processors, and two that share a last cache for some minutes communicate in half the
// time of two that do not, for any size of message. Only the reach shows such a change. The pace of a core
// does not matter here, since a transfer waits for the other core's cache.
//
// This requires one clock, which all processes of a machine share. Ranks of several machines are timed in
// batches.

// When one rank arrived at and left one call, and its CPU time in between.
struct Stay {
  double arrived = 0;
  double left = 0;
  double cpu_seconds = 0;
};

// The answer from all ranks' stays; those of one call are adjacent.
Measurement answer_of(std::span<const Stay> stays, std::size_t ranks, const RulerOptions& options);

// Every member calls this with the same point, and all return the same measurement. `data` is timed (NCCL for
// a GPU, else `host` itself); `host` joins the same ranks and carries the bookkeeping. `one_clock`: all
// members are processes of one machine and communicate by its memory. `footprint`: bytes of the buffers that
// calls take in turn.
Measurement measure_collective(kernels::Communicator& host, kernels::Communicator& data,
                               kernels::Backend& backend, RandomPool& pool, const CollectivePoint& point,
                               const RulerOptions& options, bool one_clock, double footprint);

}  // namespace equipoise::measure
