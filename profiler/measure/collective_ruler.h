// Times a collective on every rank of a group at once.
//
// On GPUs in nccl-tests' way: batches of calls between barriers, averaged over ranks, the median over
// batches.
//
// On CPUs one call at a time, as a step runs them. Calls back to back do not show what a step pays: their
// buffers stay as the call before left them, in every core's cache, and a call waits for whoever came late to
// the one before. So before each call every rank writes its send buffer anew, as the op before would have
// done; the ranks meet; each notes when it arrives and when it leaves. The call's time is from the *last*
// arrival to a rank's leaving, averaged over ranks: waiting for others is the step's affair, not the
// collective's. Calls walk over several pairs of buffers.
//
// A call during which a rank was off its processor is dropped and counted; of the others the ruler's quantile
// is the answer. Beside it stands the ranks' *reach*: how long a barrier takes just then. A hypervisor moves
// its processors about, and two that share a last cache for some minutes reach each other in half the time of
// two that do not, whatever the size of the message: another machine, which shows in the reach and in nothing
// else. The pace of a core does not matter here: a transfer waits for the other core's cache.
//
// All processes of a machine read one clock; ranks of several machines do not, and are timed in batches.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "profiler/measure/point.h"
#include "profiler/measure/ruler.h"
#include "profiler/measure/workload.h"

namespace equipoise::measure {

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
// buffers to walk over.
Measurement measure_collective(kernels::Communicator& host, kernels::Communicator& data,
                               kernels::Backend& backend, RandomPool& pool, const CollectivePoint& point,
                               const RulerOptions& options, bool one_clock, double footprint);

}  // namespace equipoise::measure
