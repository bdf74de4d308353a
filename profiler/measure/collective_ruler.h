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
// A call during which a rank was off its processor is dropped and counted, and so is one between two readings
// of the pace of which either was below the usual one on any rank. The pace is read on all ranks at once, so
// it also tells whether two of them are, for now, siblings on one core: they then compute slower and
// communicate twice as fast, which is another machine. Of the other calls the ruler's quantile is the answer.
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
  double pace = 0;  // the lower one of the readings around the call, of all ranks
};

// The answer from all ranks' stays, those of a call next to each other. A call whose pace is below
// `least_pace` counts as throttled.
Measurement answer_of(std::span<const Stay> stays, std::size_t ranks, double least_pace,
                      const RulerOptions& options);

// Every member calls it with the same point; all return the same measurement. `host` joins the same ranks as
// `data` and carries the bookkeeping; `data` is what is timed (NCCL for a GPU, else `host` itself).
// `one_clock`: all members are processes of one machine and communicate by its memory. `footprint`: bytes of
// buffers to walk over.
Measurement measure_collective(kernels::Communicator& host, kernels::Communicator& data,
                               kernels::Backend& backend, RandomPool& pool, const CollectivePoint& point,
                               const RulerOptions& options, bool one_clock, double footprint);

}  // namespace equipoise::measure
