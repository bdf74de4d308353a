// What a step is run with and what comes out of it, at `stage` fidelity.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/memory/memory_model.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/ops.h"

namespace equipoise {

struct StepOptions {
  const SchedulePolicy* schedule = nullptr;
  int keep = 1;  // ChunkFlow's K
  bool strict_keep = false;
  bool blocking_sends = false;
  bool record_ops = false;   // fill StepResult::ops and lane_tokens
  bool record_gpus = false;  // fill StepResult::gpu_compute
};

// One op of one stage, for timelines and tests.
struct StageOp {
  std::int32_t lane = 0;
  std::int32_t stage = 0;
  ScheduleOp op;
  Picoseconds start = 0;  // first CP rank
  Picoseconds end = 0;    // last CP rank
};

// Tokens by micro-batch of a lane, for what its ranks hold.
struct LaneTokens {
  std::vector<std::int64_t> rank_tokens;  // [micro-batch * context + CP rank]
  std::vector<std::int64_t> gathered;     // [micro-batch]: those whose K and V a rank gathers
};

struct LaneResult {
  Picoseconds makespan = 0;   // first op to last backward, from the lane's own start
  Picoseconds useful = 0;     // sum over stages, recompute excluded
  Picoseconds recompute = 0;  // sum over stages
  int context = 1;

  // Useful time counts each op at its slowest rank. Ranks that do not meet (Skrull's whole documents need no
  // exchange) run ahead of each other, so that ops overlap and may sum to more than the makespan: no bubble.
  [[nodiscard]] double bubble(int stages) const {
    if (makespan <= 0) return 0;
    return std::max(0.0, 1.0 - to_seconds(useful) / (stages * to_seconds(makespan)));
  }
};

// A quantity of every GPU: what is needed of it.
struct GpuSpread {
  double max = 0, mean = 0, min = 0;
};

struct StepResult {
  Picoseconds step = 0;           // first op to the end of the optimizer step
  Picoseconds pipeline = 0;       // first op to the last backward of any lane
  Picoseconds gradient_wait = 0;  // after that: exposed gradient reduction and parameter gathering
  Picoseconds optimizer = 0;      // slowest stage
  std::vector<LaneResult> lanes;
  std::vector<Picoseconds> forward_latency;  // per micro-batch, all lanes in order: through all stages
  double bubble_ratio = 0;                   // mean over lanes
  GpuSpread compute;                         // seconds of each GPU
  GpuSpread attention;                       // of them, in attention kernels
  std::vector<double> gpu_compute;           // GpuCompute::seconds; of one TP rank where all do the same
  double cp_imbalance = 1;                   // max / mean of attention over ranks, weighted by micro-batch
  // Where time goes, means over GPUs. A lane's pipeline is useful time, recompute and idle time (bubbles,
  // transfers between stages that nothing hides, ZeRO-3's waits); lanes_wait: until the slowest lane ends.
  double recompute_seconds = 0;
  double idle_seconds = 0;  // 0 where ops of ranks that drift apart overlap (LaneResult::bubble)
  double lanes_wait_seconds = 0;
  std::array<double, kStreams> exposed_seconds{};
  double recompute_exposed_seconds = 0;  // of exposed_seconds, the part that is in recompute_seconds, too
  double kv_sent_tokens = 0;
  double kv_useful_tokens = 0;
  std::int64_t tokens = 0;              // real
  std::int64_t computed_tokens = 0;     // with padding
  std::int64_t distributed_tokens = 0;  // in micro-batches with CP degree > 1, distributed slices only
  double causal_pairs = 0;
  double window_pairs = 0;  // of them, those inside the model's sliding window, where it has one
  MemoryPeak peak;          // of all lanes, with a memory model
  // Of the op that sets the peak, first to last rank; -1 where they are not known (op fidelity knows).
  Picoseconds peak_start = -1, peak_end = -1;
  bool lanes_apart = false;    // lanes that share expert groups order their ops differently (lockstep.h)
  bool bucket_broken = false;  // a CP rank holds more than Skrull's bucket
  RangeUse use;
  std::vector<StageOp> ops;
  std::vector<LaneTokens> lane_tokens;  // by lane
};

// Fills what follows from `lanes` and `pipeline`: bubbles, idle time, waiting for the slowest lane.
void sum_lanes(StepResult& result, const Layout& layout);

}  // namespace equipoise
