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
// events. Warm-up comes first and is not counted. Calls take several sets of buffers in turn, so that a cache
// does not answer for memory.
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
  double reach_seconds = 0;   // of a collective's ranks; 0: not measured
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

// --- What pace is usual?
//
// A core that others share has spells of a lower pace; the 95th percentile of all
// readings is the pace of a core left alone as long as a twentieth of them found it so, and no single odd
// reading moves it. On a core that is never left alone it is the pace that comes nearest to it.

// A CPU core whose pace is further below the usual one is not left alone: readings of one that is stay within
// four percent of each other.
inline constexpr double kMostThrottled = 0.06;

class PaceLog {
 public:
  void add(double pace) {
    if (!(pace > 0)) return;
    ++readings_of_[static_cast<int>(std::lround(std::log(pace) / kStep))];
    ++readings_;
  }

  // To half a percent; 0 without readings.
  [[nodiscard]] double usual() const {
    std::size_t above = 0;
    for (auto bin = readings_of_.rbegin(); bin != readings_of_.rend(); ++bin) {
      above += bin->second;
      if (20 * above >= readings_) return std::exp(kStep * bin->first);
    }
    return 0;
  }

 private:
  static constexpr double kStep = 0.005;  // of the logarithm
  std::map<int, std::size_t> readings_of_;
  std::size_t readings_ = 0;
};

// --- Times a collective on every rank of a group at once.
//
// On GPUs in nccl-tests' way: batches of calls between barriers, averaged over ranks, the median over
// batches.
//
// On CPUs one call at a time, as a step runs them. Calls back to back do not show what a step pays: their
// buffers stay as the call before left them, in every core's cache, and a call waits for whoever came late to
// the one before. So before each call every rank writes its send buffer anew, as the op before would have
// done; the ranks wait for each other; each notes when it arrives and when it leaves. The call's time is from
// the *last* arrival to a rank's leaving, averaged over ranks: waiting for others is the step's affair, not
// the collective's. Calls take several pairs of buffers in turn.
//
// A call during which a rank was off its processor is dropped and counted; of the others the ruler's quantile
// is the answer. Beside it stands the ranks' *reach*: how long a barrier takes just then. A hypervisor moves
// its processors about, and two that share a last cache for some minutes reach each other in half the time of
// two that do not, whatever the size of the message: another machine, which shows in the reach and in nothing
// else. The pace of a core does not matter here: a transfer waits for the other core's cache.
//
// All processes of a machine read one clock; ranks of several machines do not, and are timed in batches.

// One rank in one call: when it arrived and left, and the CPU time that it had in between.
struct Stay {
  double arrived = 0;
  double left = 0;
  double cpu_seconds = 0;
};

// The answer from all ranks' stays, those of a call next to each other.
Measurement answer_of(std::span<const Stay> stays, std::size_t ranks, const RulerOptions& options);

// Every member calls it with the same point; all return the same measurement. `host` joins the same ranks as
// `data` and carries the bookkeeping; `data` is what is timed (NCCL for a GPU, else `host` itself).
// `one_clock`: all members are processes of one machine and communicate by its memory. `footprint`: bytes of
// buffers that are taken in turn.
Measurement measure_collective(kernels::Communicator& host, kernels::Communicator& data,
                               kernels::Backend& backend, RandomPool& pool, const CollectivePoint& point,
                               const RulerOptions& options, bool one_clock, double footprint);

// --- A point made runnable: its buffers on the device, several sets of them, and the call to time.

// Random, zero-free numbers that live on the device and are copied to wherever inputs are needed: making
// gigabytes of them on the host for every point would take longer than the measurement.
class RandomPool {
 public:
  RandomPool(kernels::Backend& backend, std::uint64_t seed);
  // A new device buffer of random elements of the backend's type.
  kernels::Buffer elements(std::int64_t count);
  kernels::Buffer floats(std::int64_t count);           // f32
  kernels::Buffer positive_floats(std::int64_t count);  // f32, all above zero

 private:
  kernels::Buffer filled(const kernels::Buffer& pool, std::size_t bytes);

  kernels::Backend& backend_;
  kernels::Buffer elements_;
  kernels::Buffer floats_;
  kernels::Buffer positive_;
  std::size_t turn_ = 0;  // copies start at different places of the pool
};

struct Workload {
  std::size_t sets = 1;
  std::function<void(std::size_t set)> call;
};

// `footprint` bytes of buffer sets are made, at least one set and at most 16 (64 of a GPU's footprint,
// 1024 of ops that only move memory).
Workload make_workload(kernels::Backend& backend, RandomPool& pool, const Point& point, double footprint);

// Times the workload's calls, which take its sets in turn.
TimeBatch time_batch_of(kernels::Backend& backend, const Workload& workload);

}  // namespace equipoise::measure
