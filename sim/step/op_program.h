// One optimizer step as programs that ranks interpret: the `op` fidelity in compact form.
//
// 8,192 GPUs x 126 layers are 40 million kernels a step, but they repeat: every layer of a micro-batch runs
// the same list of ops with the same durations, and the ranks of a lane differ only in those durations. So
// what is stored is, per lane and micro-batch, one block per part of the model (a layer's forward, a layer's
// backward, the embedding, the head), and per op of the schedule (ScheduledOp) which blocks it repeats how
// often. The engine (op_run.h) runs every op of every rank from that; sim/verify/lowering.h writes the
// same program out as a task graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "policies/base/index.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/ops.h"

namespace equipoise {

// Whom an op waits for, apart from its own rank's earlier ops.
enum class SyncGroup : std::uint8_t {
  none,     // a kernel
  tensor,   // the ranks of the TP group (no effect while TP is folded)
  context,  // the lane's CP ranks of equal TP coordinate
  // Members on several lanes of a lockstep group:
  expert,    // the expert-parallel group, at equal TP coordinate modulo OpLane::expert_tensor
  replicas,  // all of the lockstep group's ranks of equal TP coordinate
};
inline bool spans_lanes(SyncGroup sync) {
  return sync == SyncGroup::expert || sync == SyncGroup::replicas;
}

struct OpStep {
  OpName name{};
  Stream stream = Stream::compute;
  SyncGroup sync = SyncGroup::none;
  bool with_next = false;  // runs alongside the next step, on its own stream; what follows waits for both
  // An exchange of experts: how many of the next steps run under it. What follows waits for it and for them;
  // none of them waits for other lanes.
  std::uint32_t over = 0;
  bool of_second = false;  // in a pair's block: belongs to the second op, the backward
  // Background ops of ZeRO-2 and 3. `background`: the op waits for all replicas and runs after those of its
  // lockstep group under way, while the rank goes on at once. `waits`: takes no time, but the rank waits for
  // all background ops so far.
  bool background = false;
  bool waits = false;
  // The busiest CP rank's bytes, for timelines and link contention (OpBlock::work has each rank's). A
  // collective's bytes are counted as in its cost model.
  double bytes = 0;
  double flops = 0;
  std::int32_t rank_work = kAlike;  // where CP ranks differ: the first one's place in OpBlock::rank_work
  static constexpr std::int32_t kAlike = -1;
};

// What one rank computes and moves in an op.
struct RankWork {
  double bytes = 0;
  double flops = 0;
  friend bool operator==(const RankWork&, const RankWork&) = default;
};

// What the ops of a block compute. Engines ignore it; an executor needs it.
enum class BlockRole : std::uint8_t {
  none,  // collectives between lanes, or nothing
  embedding_forward,
  embedding_backward,
  head_forward,
  head_backward,
  layer_forward,
  layer_backward,
  layer_input_gradient,  // half of a split backward
  layer_weight_gradient
};
inline constexpr std::int32_t kNoMicroBatch = -1;
inline constexpr std::int32_t kNoLayer = -1;

// A list of ops that all ranks of a lane execute in step.
struct OpBlock {
  std::vector<OpStep> steps;
  // [step * context + CP rank]; equal over the CP ranks of a collective. A collective over several lanes
  // takes the longest of its members' durations.
  std::vector<Picoseconds> durations;
  BlockRole role = BlockRole::none;
  std::int32_t micro_batch = kNoMicroBatch;  // place in the lane
  std::vector<RankWork> rank_work{};         // of steps whose ranks differ, by CP rank

  [[nodiscard]] RankWork work(const OpStep& step, std::size_t context_rank) const {
    if (step.rank_work == OpStep::kAlike) return {step.bytes, step.flops};
    return rank_work[at(step.rank_work) + context_rank];
  }
};

inline constexpr int kNoLockstep = -1;
inline constexpr std::int32_t kNoBucket = -1;
inline constexpr std::int32_t kNoInput = -1;
inline constexpr std::int64_t kNoTransfer = -1;

struct BlockRun {
  std::uint32_t block = 0;          // in OpLane::blocks
  std::uint32_t repeat = 1;         // layers
  std::int32_t bucket = kNoBucket;  // repetition i completes the gradients of bucket + i (last backward only)
  // The model's layer in the first repetition. Later repetitions of a forward go up, those of a backward or
  // weight gradient go down.
  std::int32_t layer = kNoLayer;
};

// One op of the schedule on one stage. The first of a pair (ScheduleOp::with_next) holds the runs of both;
// the second, behind it, has none of its own, and starts and ends with it.
struct ScheduledOp {
  ScheduleOp op;
  std::uint32_t first_run = 0;  // in OpLane::runs
  std::uint32_t run_count = 0;
  std::int32_t input_stage = kNoInput;  // the scheduled op that makes its input, on this or another stage
  std::int32_t input_op = kNoInput;
  std::int64_t transfer = kNoTransfer;  // of the input: first of `context` durations in OpLane::transfers
  // With blocking sends, the transfer of this op's result, for which its stage waits.
  std::int64_t blocking_send = kNoTransfer;
};

// Whether a block that a pair's first op runs belongs to the second: then it has another micro-batch.
inline bool block_of_second(const ScheduledOp& first, const OpBlock& block) {
  return first.op.with_next && block.micro_batch != kNoMicroBatch &&
         block.micro_batch != first.op.micro_batch;
}

inline bool ends_pair(std::span<const ScheduledOp> stage, std::size_t index) {
  return index > 0 && stage[index - 1].op.with_next;
}

// One data-parallel replica.
struct OpLane {
  int context = 1;
  int first_replica = 0;  // place of CP rank 0 among the data x context ranks of a stage
  int barrier_group = 0;  // starts when all lanes of lower groups have ended
  // Lanes of a lockstep group wait for each other inside scheduled ops: scheduled op number i of a stage
  // makes on each of them the same collectives over lanes, in the same order.
  int lockstep = kNoLockstep;
  std::vector<int> expert_group;  // in a lockstep group, by CP rank: its expert-parallel group's number in
                                  // the lockstep group
  int expert_tensor = 0;  // expert groups span TP ranks that are equal modulo this; 0: only equal ones
  std::vector<OpBlock> blocks;
  std::vector<BlockRun> runs;
  std::vector<Picoseconds> transfers;
  std::vector<double> transfer_bytes;            // parallel to `transfers`; empty if unknown
  std::vector<std::vector<ScheduledOp>> stages;  // in issue order
};

// The TP coordinate that all ranks of one expert-parallel group share.
inline std::size_t expert_coordinate(const OpLane& lane, std::size_t tensor_rank) {
  return lane.expert_tensor > 0 ? tensor_rank % at(lane.expert_tensor) : tensor_rank;
}

// The end of a step on one stage. A bucket is a collective over all data x context ranks that overlaps the
// backward: it starts when the last rank has filled it and the one before it is done; buckets go in the order
// in which they are full (ties: the lower index).
struct StageEnd {
  // Every lane with ops on the stage fills each bucket once; only the last barrier group must.
  std::vector<Picoseconds> buckets;
  std::vector<OpStep> steps;  // after buckets and backward, on every rank: optimizer, parameter gather
  std::vector<Picoseconds> durations;  // parallel to `steps`
  std::vector<double> bucket_bytes{};  // parallel to `buckets`; empty if unknown
  // What the backward takes longer since the buckets under it hold SMs: the last one starts so much later
  // than it is full.
  Picoseconds lost = 0;
};

struct OpProgram {
  int stages = 1;
  int tensor = 1;    // 1 while TP is folded: all ranks of a TP group share one task
  int replicas = 1;  // data x context ranks of a stage
  int lockstep_groups = 0;
  std::vector<OpLane> lanes;
  std::vector<StageEnd> ends;  // by stage; empty if the step ends with the last backward

  [[nodiscard]] std::int64_t ranks() const {
    std::int64_t sum = 0;
    for (const OpLane& lane : lanes) sum += lane.context;
    return sum * tensor * stages;
  }
  // Number of kernels, collective members and transfers in the step.
  [[nodiscard]] std::int64_t tasks() const;
};

// Throws EngineError where the program contradicts itself (an input that does not exist, sizes that differ,
// buckets that no scheduled op fills, negative durations). O(size of the program).
void check_program(const OpProgram& program);

}  // namespace equipoise
