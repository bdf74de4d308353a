// What a contended run is made of (contended_run.h): cells, i.e. lanes' stages, with their ranks; where ranks
// meet; the end of the step.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/engine/op/contended_run.h"
#include "sim/engine/op/op_rows.h"

namespace equipoise::contended {

inline constexpr Picoseconds kUnknown = -1;

enum class Wait : std::uint8_t { nothing, begin, meeting, exchange, exchange_under, background, done };

// Where a rank stands: op number `step` of repetition `repetition` of run `run` of scheduled op `scheduled`.
struct Rank {
  Picoseconds clock = 0;   // its next op may begin
  Picoseconds free = 0;    // its latest op has ended (an exchange of experts counts when it is waited for)
  Picoseconds beside = 0;  // in a meeting: how long its op beside takes
  Picoseconds exchange_start = 0, exchange_end = 0;  // of the one that ops run under
  std::uint64_t key = 0, jitter_base = 0;
  std::uint32_t scheduled = 0, run = 0, repetition = 0, step = 0;
  std::uint32_t under_end = 0;  // of the block's steps: the first behind those under the exchange; 0: none
  std::uint32_t meeting = 0;    // recorded ends of this scheduled op before the next meeting's
  std::uint32_t synchronization = 0;  // ops of this scheduled op that meet lanes, so far
  std::uint32_t background = 0;       // ops in the background of this stage, so far
  Stream exchange_stream = Stream::ep;
  Wait wait = Wait::begin;
  bool queued = false;
};

// A collective inside a lane that members are arriving at.
struct Meeting {
  std::uint32_t arrived = 0;
  Picoseconds start = 0;  // the last arrival so far
};

// A scheduled op that gets its input from another.
struct Receiver {
  std::uint32_t stage = 0, scheduled = 0;
};

struct Cell {
  std::size_t lane = 0, stage = 0;
  const OpLane* program = nullptr;
  const std::vector<ScheduledOp>* ops = nullptr;
  std::size_t ranks = 1;
  std::size_t barrier = 0;    // number of its lane's barrier group
  std::vector<double> speed;  // empty: nominal
  std::vector<Rank> rank;
  std::vector<Meeting> context, tensor;          // by TP coordinate; by CP rank
  std::vector<std::vector<Receiver>> receivers;  // [scheduled op]
  std::vector<Picoseconds> input_end;            // [scheduled op * ranks + rank]
  std::vector<Picoseconds> filled;               // [bucket * ranks + rank]
  Picoseconds *start = nullptr, *end = nullptr;  // [scheduled op * ranks + rank], in the result
  RecordedTimes::Stage recorded;
};

// An op that meets lanes.
struct Exchange {
  std::uint32_t arrived = 0;
  Picoseconds latest = 0, start = 0, end = kUnknown;
  std::int32_t lane = -1, rank = -1;  // who arrived last; ties: the lowest
  OpName name{};
  double bytes = 0;                         // the most of any member: a lane may bring nothing
  std::uint32_t scheduled = 0, number = 0;  // it is op `number` of the scheduled op that meets lanes
};
using Place = std::pair<std::uint32_t, std::uint32_t>;  // cell, rank

// Ops in the background of a stage, one after another, of one TP coordinate.
struct Background {
  std::vector<Exchange> ops;
  std::vector<std::vector<Place>> waiting;  // by op
  std::size_t next = 0;                     // the first that has not ended
  Picoseconds busy = 0;
  bool running = false;
};

struct LockstepStage {
  std::vector<Exchange> expert, replicas;  // in the foreground, by group
  std::vector<Background> background;      // by TP coordinate
  std::vector<std::uint32_t> before;       // [scheduled op * TP ranks + TP coordinate]: in the background
};
struct LockstepMembers {
  std::vector<std::vector<Place>> expert, replicas;  // by group: lane, rank
};

// Gradient buckets and what follows them, of one stage and TP coordinate.
struct End {
  std::size_t stage = 0, tensor = 0;
  std::vector<std::uint32_t> order;    // of buckets
  std::vector<std::uint32_t> missing;  // by bucket: ranks that will fill it
  std::size_t next = 0, next_step = 0;
  std::uint32_t running_ranks = 0;
  Picoseconds busy = 0;  // the bucket or step before ends
  Picoseconds done = 0;  // the last of the ranks that have ended
  bool running = false, border = false;
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
  std::vector<Cell> cells;                     // [lane * stages + stage]
  std::vector<LockstepStage> lockstep;         // [lockstep group * stages + stage]
  std::vector<LockstepMembers> members;        // by lockstep group
  std::vector<End> ends;                       // [stage * tensor + TP coordinate]
  std::vector<Picoseconds> barrier_begin;      // by barrier group, in order
  std::vector<std::uint32_t> barrier_running;  // ranks that have not ended
  std::vector<Picoseconds> barrier_end;
  bool joint = false;  // all lanes are run together
  std::int64_t all_ops = 0;
  std::atomic<std::int64_t> ended_ops{0};  // scheduled ops x ranks

  // Ends that a row of collectives inside the lane records: 0 where it is none.
  [[nodiscard]] std::size_t meetings(const Cell& cell, const OpStep& step) const {
    return op_rows::recorded_groups(step.sync, *cell.program, static_cast<int>(tensor), cell.recorded.tensor);
  }
  // What of the run becomes the result.
  OpResult take_result();

 private:
  void make_cells();
  void make_cell(Cell& cell);
  void make_lockstep();
  void make_ends();
};

}  // namespace equipoise::contended
