// What comes out of a step: what was worked on, and when it happened.
//
// The work of a step follows from the plan, the sharding and the schedule alone. Its times are those of an
// executor: layer resolution (StepSimulator) or op resolution (OpStepSimulator). Each returns both values
// whole.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "profiler/profile/cost_models.h"
#include "sim/memory/memory_model.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/layout.h"
#include "sim/workload/ops.h"

namespace equipoise {

// By micro-batch of a lane, the tokens from which follows what its ranks hold.
struct LaneTokens {
  std::vector<std::int64_t> rank_tokens;  // [micro-batch * context + CP rank]
  std::vector<std::int64_t> gathered;     // [micro-batch]: tokens whose K and V a rank gathers
  friend bool operator==(const LaneTokens&, const LaneTokens&) = default;
};

// What results keep of a step's work.
struct WorkSums {
  std::int64_t tokens = 0;              // real
  std::int64_t computed_tokens = 0;     // with padding
  std::int64_t distributed_tokens = 0;  // in micro-batches with CP degree > 1, distributed slices only
  double causal_pairs = 0;
  double window_pairs = 0;  // of these, pairs inside the model's sliding window, if it has one
  double kv_sent_tokens = 0;
  double kv_useful_tokens = 0;
  MemoryPeak peak;                    // over all lanes, with a memory model
  bool bucket_broken = false;         // whether a CP rank holds more than Skrull's bucket
  bool unsynchronized_lanes = false;  // whether lanes that share groups differ in their order (lockstep.h)
  RangeUse use;
  friend bool operator==(const WorkSums&, const WorkSums&) = default;
};

struct StepWork : WorkSums {
  // With record_ops and a memory model:
  std::vector<LaneTokens> lane_tokens;  // by lane
  std::vector<MemoryPeak> stage_peaks;  // by stage, for the lane that holds the most there
  friend bool operator==(const StepWork&, const StepWork&) = default;
};

struct TimeSpan {
  Picoseconds start = 0, end = 0;
  friend bool operator==(const TimeSpan&, const TimeSpan&) = default;
};

// An op on one CP rank: from when it could begin to its end there, and the transfer that brought its input
// (empty if none travels).
struct RankOp {
  TimeSpan op, transfer;
  friend bool operator==(const RankOp&, const RankOp&) = default;
};

// One op of one stage, for timelines and tests.
struct StageOp {
  std::int32_t lane = 0;
  std::int32_t stage = 0;
  ScheduleOp op;
  Picoseconds start = 0;        // on the first CP rank
  Picoseconds end = 0;          // on the last CP rank
  std::vector<RankOp> ranks{};  // by CP rank; empty at op fidelity, where each rank has ops of its own
  friend bool operator==(const StageOp&, const StageOp&) = default;
};

struct LaneResult {
  Picoseconds makespan = 0;   // first op to last backward, from the lane's own start
  Picoseconds useful = 0;     // sum over stages, without recompute
  Picoseconds recompute = 0;  // sum over stages
  int context = 1;

  // Useful time counts each op at its slowest rank. Ranks that do not wait for each other (Skrull's whole
  // documents need no exchange) run ahead of each other, so that ops overlap and may sum to more than the
  // makespan: no bubble.
  [[nodiscard]] double bubble(int stages) const {
    if (makespan <= 0) return 0;
    return std::max(0.0, 1.0 - to_seconds(useful) / (stages * to_seconds(makespan)));
  }
  friend bool operator==(const LaneResult&, const LaneResult&) = default;
};

// Summary of a quantity that every GPU has.
struct GpuSpread {
  double max = 0, mean = 0, min = 0;
  friend bool operator==(const GpuSpread&, const GpuSpread&) = default;
};

// What lanes leave unused, means over GPUs. A lane's pipeline is useful time, recompute and idle time
// (bubbles, transfers between stages that nothing hides, ZeRO-3's waits).
struct LaneLosses {
  double bubble_ratio = 0;        // mean over lanes
  double idle_seconds = 0;        // 0 where ops of ranks that drift apart overlap (LaneResult::bubble)
  double lanes_wait_seconds = 0;  // until the slowest lane ends
  friend bool operator==(const LaneLosses&, const LaneLosses&) = default;
};

// `pipeline`: first op to the last backward of any of the lanes.
LaneLosses lane_losses(std::span<const LaneResult> lanes, Picoseconds pipeline, const Layout& layout);

// What results keep of a step's times.
struct TimeSums {
  Picoseconds makespan = 0;       // first op to the end of the optimizer step
  Picoseconds pipeline = 0;       // first op to the last backward of any lane
  Picoseconds gradient_wait = 0;  // exposed gradient reduction and parameter gathering after that
  Picoseconds optimizer = 0;      // slowest stage
  LaneLosses losses;
  GpuSpread compute;        // seconds of each GPU
  GpuSpread attention;      // part of that in attention kernels
  double cp_imbalance = 1;  // max / mean of attention over ranks, weighted by micro-batch
  // The figures below are means over GPUs.
  double recompute_seconds = 0;
  std::array<double, kStreams> exposed_seconds{};
  double recompute_exposed_seconds = 0;  // part of exposed_seconds that recompute_seconds also has
  // When the op ran that sets the memory peak, first to last rank. Only op fidelity knows.
  std::optional<TimeSpan> peak_op;
  friend bool operator==(const TimeSums&, const TimeSums&) = default;
};

struct StepTimes : TimeSums {
  std::vector<LaneResult> lanes;             // lanes that have micro-batches
  std::vector<Picoseconds> forward_latency;  // per micro-batch, through all stages, lanes in order
  std::vector<double>
      gpu_compute;           // with record_gpus: GpuCompute::seconds; of one TP rank where all do the same
  std::vector<StageOp> ops;  // with record_ops
  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// What ops take by themselves, without waits for each other: sums over ops and stages.
struct OpSums {
  Picoseconds useful = 0;             // by each op's slowest rank, with recompute
  Picoseconds recompute = 0;          // of it
  Picoseconds recompute_exposed = 0;  // part of `exposed` that `recompute` also has
  std::array<Picoseconds, kStreams>
      exposed{};  // communication that compute does not hide, as a mean over a stage's ranks
  OpSums& operator+=(const OpSums& other) {
    useful += other.useful;
    recompute += other.recompute;
    recompute_exposed += other.recompute_exposed;
    for (std::size_t s = 0; s < kStreams; ++s) exposed[s] += other.exposed[s];
    return *this;
  }
  friend bool operator==(const OpSums&, const OpSums&) = default;
};

// The sums of lanes as seconds of all GPUs, TP folded, of which a step reports means.
struct GpuSums {
  double recompute = 0, recompute_exposed = 0;
  std::array<double, kStreams> exposed{};
  // Adds a lane that has so many ranks on a stage.
  void add(const OpSums& lane, int ranks);
  void report_means(const Layout& layout, StepTimes& times) const;
};

struct StepResult {
  StepWork work;
  StepTimes times;
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

}  // namespace equipoise
