// Times a collective on every rank of a group at once, in nccl-tests' way: batches of calls between barriers,
// averaged over ranks, the median over batches.
#pragma once

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "profiler/measure/point.h"
#include "profiler/measure/ruler.h"
#include "profiler/measure/workload.h"

namespace equipoise::measure {

// Every member calls it with the same point; all return the same measurement. `host` joins the same ranks as
// `data` and carries the bookkeeping; `data` is what is timed (NCCL for a GPU, else `host` itself).
Measurement measure_collective(kernels::Communicator& host, kernels::Communicator& data,
                               kernels::Backend& backend, RandomPool& pool, const CollectivePoint& point,
                               const RulerOptions& options);

}  // namespace equipoise::measure
