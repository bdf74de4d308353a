// What a contended run is made of: the stages of the lanes with their ranks, collectives under way, the end
// of the step.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/barrier_groups.h"
#include "sim/step/contended_run.h"
#include "sim/step/network_routes.h"
#include "sim/step/op_interpreter.h"
#include "sim/step/op_run.h"
#include "sim/step/stage_end.h"

namespace equipoise::contended {

enum class Wait : std::uint8_t { nothing, begin, collective, cross_lane, exchange_under, background, done };

// How far a rank has come: at op `step` of repetition `repetition` of run `run` of scheduled op `scheduled`.
struct Rank {
  Picoseconds clock = 0;      // when its next op may begin
  Picoseconds free = 0;       // when its latest op ended (an exchange of experts: when it is waited for)
  Picoseconds alongside = 0;  // in a collective, how long the op takes that runs alongside it
  Picoseconds exchange_start = 0, exchange_end = 0;  // the exchange that ops run under
  std::uint64_t key = 0, jitter_base = 0;
  std::uint32_t scheduled = 0, run = 0, repetition = 0, step = 0;
  std::uint32_t under_end = 0;        // first of the block's steps beyond the open exchange; 0: none is open
  std::uint32_t recorded = 0;         // ends of this scheduled op that come before the next collective's
  std::uint32_t synchronization = 0;  // collectives over several lanes of this scheduled op, so far
  std::uint32_t background = 0;       // ops in the background of this stage, so far
  Stream exchange_stream = Stream::ep;
  Wait wait = Wait::begin;
  bool queued = false;
};

// A collective inside a lane that members are arriving at.
struct LaneCollective {
  std::uint32_t arrived = 0;
  Picoseconds start = 0;  // the last arrival so far
};

// A scheduled op that gets its input from another.
struct Receiver {
  std::uint32_t stage = 0, scheduled = 0;
};

struct LaneStage {
  std::size_t lane = 0, stage = 0;
  const OpLane* program = nullptr;
  const std::vector<ScheduledOp>* ops = nullptr;
  std::size_t ranks = 1;
  std::size_t barrier = 0;    // number of its lane's barrier group
  std::vector<double> speed;  // empty: nominal
  std::vector<Rank> rank;
  std::vector<LaneCollective> context, tensor;   // [TP coordinate] and [CP rank]
  std::vector<std::vector<Receiver>> receivers;  // [scheduled op]
  std::vector<Picoseconds> input_end;            // [scheduled op * ranks + rank]
  std::vector<Picoseconds> filled;               // [bucket * ranks + rank]
  Picoseconds *start = nullptr, *end = nullptr;  // [scheduled op * ranks + rank], in the result
  RecordedTimes::Stage recorded;
};

// A collective over several lanes.
struct CrossLaneOp {
  std::uint32_t arrived = 0;
  Picoseconds latest = 0, start = 0, end = kUnknown;
  std::int32_t lane = -1, rank = -1;  // who arrived last; ties: the lowest
  OpName name{};
  double bytes = 0;                         // the most of any member: a lane may bring nothing
  std::uint32_t scheduled = 0, number = 0;  // its number among those of the scheduled op
};
using Place = std::pair<std::uint32_t, std::uint32_t>;  // here, rank

// The background ops of one TP coordinate of a stage, which run one after another.
struct Background {
  std::vector<CrossLaneOp> ops;
  std::vector<std::vector<Place>> waiting;  // by op
  std::size_t next = 0;                     // the first op that has not ended
  Picoseconds busy = 0;
  bool running = false;
};

struct LockstepStage {
  std::vector<CrossLaneOp> expert, replicas;  // in the foreground, by group
  std::vector<Background> background;         // by TP coordinate
  std::vector<std::uint32_t> before;          // [scheduled op * TP ranks + TP coordinate]: in the background
};
struct LockstepMembers {
  std::vector<std::vector<Place>> expert, replicas;  // by group: lane, rank
};

struct State {
  State(const OpProgram& program, const OpOptions& options, const OpResult& alone,
        const NetworkRoutes& routes, const ContendedOptions& how);

  const OpProgram& program;
  const OpOptions& options;
  const OpResult& alone;
  const NetworkRoutes& routes;
  const ContendedOptions& how;
  std::size_t tensor = 1, stages = 1;
  OpResult result;
  RecordedTimes recorded;
  std::vector<LaneStage> lane_stages;                    // [lane * stages + stage]
  std::vector<LockstepStage> lockstep;                   // [lockstep group * stages + stage]
  std::vector<LockstepMembers> members;                  // by lockstep group
  std::vector<StageEndRun> ends;                         // [stage * tensor + TP coordinate]
  BarrierGroups barriers{std::vector<std::uint32_t>{}};  // barriers between lanes that run something, by
                                                         // ranks
  bool joint = false;                                    // all lanes are run together
  std::int64_t all_ops = 0;
  std::atomic<std::int64_t> ended_ops{0};  // scheduled ops x ranks

  // How many ends a collective inside the lane records, one for each of its groups: 0 where it is none.
  [[nodiscard]] std::size_t recorded_ends(const LaneStage& here, const OpStep& step) const {
    return interpreter::recorded_groups(step.sync, *here.program, static_cast<int>(tensor),
                                        here.recorded.tensor);
  }
  // Moves the recorded times out, as the result of the run.
  OpResult take_result();

 private:
  void make_lane_stages();
  void make_lane_stage(LaneStage& here);
  void make_lockstep();
  void make_ends();
};

}  // namespace equipoise::contended
