// Runs an op program whose flows share the links of a network.
//
// Every rank interprets the program by itself, up to the next thing whose time the network decides: a
// collective or a transfer that shares links. Until then its times are known, so that it runs ahead of the
// clock; only starts and ends of flows are events. An event lets those go on that waited for it, which start
// nothing before now: times never run backwards. Kernels, collectives inside a node and all others that share
// no link are additions.
//
// Lanes that share neither links nor collectives are run apart, on several threads, up to the first moment at
// which a gradient bucket could start; from there on together. Neither can be seen in the result.
//
// Order of events: by time. At one time all ends and starts that are due, and what they lead to at that same
// time; then the rates of all flows. The result does not depend on the order within that.
//
// The result is that of the program's task graph in the event loop (tests/oracle/event_loop.h), to the
// picosecond.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/network.h"
#include "sim/step/op_interpreter.h"
#include "sim/step/op_run.h"
#include "sim/step/step_end.h"

namespace equipoise {

// Communication that compute does not hide, summed over the program's ranks. Without collectives that no
// network can slow, and those in the background.
struct ExposedTime {
  std::array<Picoseconds, kStreams> by_stream{};
  // TP, CP and EP, inside the ops of each lane: useful ones, and those that recompute (R).
  std::vector<Picoseconds> in_ops, in_recompute;
};

// As FlowNetwork::start got it.
struct StartedFlow {
  Picoseconds at = 0;
  RouteId route = 0;
  double cap = 0, limit = 0;
  Picoseconds alone = 0;
};

struct ContendedTimes {
  OpResult result;  // with RecordedTimes
  ExposedTime exposed;
  FlowNetwork::Counts counts;
  std::vector<StartedFlow> flows;  // with keep_flows, in no order
};

struct ContendedOptions {
  bool share = true;  // off: every op takes its own time, as if it had the network to itself
  int threads = 1;
  bool keep_flows = false;
  std::function<void(double)> progress;  // gets the share that is done, now and then
};

// `alone`: the program's run without contention, which gives the order of buckets and the durations of
// collectives over several lanes. Throws EngineError.
ContendedTimes run_contended(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                             const NetworkRoutes& routes, const ContendedOptions& how);

}  // namespace equipoise

// What a contended run is made of: the stages of the lanes with their ranks, collectives, the end of the
// step.
namespace equipoise::contended {

enum class Wait : std::uint8_t { nothing, begin, collective, cross_lane, exchange_under, background, done };

// Where a rank stands: op number `step` of repetition `repetition` of run `run` of scheduled op `scheduled`.
struct Rank {
  Picoseconds clock = 0;   // its next op may begin
  Picoseconds free = 0;    // its latest op has ended (an exchange of experts counts when it is waited for)
  Picoseconds beside = 0;  // in a collective: how long its op beside takes
  Picoseconds exchange_start = 0, exchange_end = 0;  // of the one that ops run under
  std::uint64_t key = 0, jitter_base = 0;
  std::uint32_t scheduled = 0, run = 0, repetition = 0, step = 0;
  std::uint32_t under_end = 0;  // of the block's steps: the first behind those under the exchange; 0: none
  std::uint32_t recorded = 0;   // recorded ends of this scheduled op before the next collective's
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
  std::vector<LaneCollective> context, tensor;   // by TP coordinate; by CP rank
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
  std::uint32_t scheduled = 0, number = 0;  // it is number `number` of those of the scheduled op
};
using Place = std::pair<std::uint32_t, std::uint32_t>;  // here, rank

// Ops in the background of a stage, one after another, of one TP coordinate.
struct Background {
  std::vector<CrossLaneOp> ops;
  std::vector<std::vector<Place>> waiting;  // by op
  std::size_t next = 0;                     // the first that has not ended
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
  BarrierGroups barriers{std::vector<std::uint32_t>{}};  // of lanes that run something; counts ranks
  bool joint = false;                                    // all lanes are run together
  std::int64_t all_ops = 0;
  std::atomic<std::int64_t> ended_ops{0};  // scheduled ops x ranks

  // How many ends a collective inside the lane records, one for each of its groups: 0 where it is none.
  [[nodiscard]] std::size_t recorded_ends(const LaneStage& here, const OpStep& step) const {
    return interpreter::recorded_groups(step.sync, *here.program, static_cast<int>(tensor),
                                        here.recorded.tensor);
  }
  // What of the run becomes the result.
  OpResult take_result();

 private:
  void make_lane_stages();
  void make_lane_stage(LaneStage& here);
  void make_lockstep();
  void make_ends();
};

// Lanes that can influence each other, and the flows between their GPUs: the event loop of a contended run.

class LaneSet {
 public:
  // Runs these lanes.
  LaneSet(State& state, std::vector<std::size_t> lanes);

  // All ranks begin.
  void begin();
  // Runs until nothing can happen any more; lanes that are not all (State::joint) at most to the first moment
  // at which the step's end may begin.
  void run(bool reports);
  // Goes on with the lanes of another part.
  void absorb(LaneSet& other);
  // From now on with the step's end, which what happened so far may have begun.
  void join_ends();

  [[nodiscard]] ExposedTime& exposed() { return exposed_; }
  [[nodiscard]] const FlowNetwork& network() const { return network_; }
  [[nodiscard]] std::vector<StartedFlow>& flows() { return flows_; }

 private:
  // What a flow is, in its tag.
  enum class Kind : std::uint32_t { context, tensor, transfer, expert, replicas, background, bucket, step };
  static FlowTag tag_of(Kind kind, std::size_t a, std::size_t b) {
    return {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)};
  }
  struct Pending {  // a flow that starts later
    Picoseconds at = 0;
    FlowTag tag;
    RouteId route = 0;
    double cap = 0, limit = 0;
    Picoseconds alone = 0;
  };
  struct StartsLater {
    bool operator()(const Pending& a, const Pending& b) const {
      return a.at != b.at ? a.at > b.at : a.tag > b.tag;
    }
  };

  // When it ends, or kUnknown: it is a flow, and finish(tag) is told.
  Picoseconds launch(const FlowTag& tag, Picoseconds start, Picoseconds duration, double bytes,
                     const OpRoute& route);
  void finish(const FlowTag& tag, Picoseconds now);

  // Ranks.
  void wake(std::size_t lane_stage, std::size_t rank);
  void run_ready();
  void advance(std::size_t lane_stage, std::size_t rank);
  bool begin_op(LaneStage& here, std::size_t rank);
  bool run_op(std::size_t lane_stage, std::size_t rank);
  bool run_step(std::size_t lane_stage, std::size_t rank, const OpBlock& block);
  void finish_op(std::size_t lane_stage, std::size_t rank);
  void send(std::size_t lane_stage, std::size_t rank, std::size_t scheduled);
  void arrive(std::size_t lane_stage, std::size_t slot, Picoseconds at);
  [[nodiscard]] Picoseconds sent_until(const LaneStage& here, std::size_t rank, std::size_t first,
                                       std::size_t last) const;
  void count_inputs(const LaneStage& here, std::size_t rank);
  [[nodiscard]] Picoseconds duration(const LaneStage& here, const Rank& k, std::size_t rank,
                                     const OpBlock& block, std::uint32_t step, SyncGroup sync,
                                     std::uint64_t key) const;
  void fill(LaneStage& here, std::size_t rank, std::size_t bucket);
  void leave_lane(LaneStage& here, std::size_t rank);

  // Collectives.
  bool join_collective(std::size_t lane_stage, std::size_t rank, const OpBlock& block, SyncGroup sync);
  void end_collective(std::size_t lane_stage, SyncGroup sync, std::size_t group, Picoseconds end);
  void pass_collective(LaneStage& here, std::size_t rank, std::size_t groups, Picoseconds start,
                       Picoseconds end);
  bool join_cross_lane_op(std::size_t lane_stage, std::size_t rank, const OpStep& step);
  void join(CrossLaneOp& op, const LaneStage& here, std::size_t rank, const OpStep& step) const;
  Picoseconds launch_cross_lane_op(const FlowTag& tag, const LaneStage& here, const CrossLaneOp& op,
                                   SyncGroup sync, std::size_t group, Picoseconds start);
  void note(std::size_t group_stage, const CrossLaneOp& op, std::size_t group);
  void end_cross_lane_op(std::size_t group_stage, SyncGroup sync, std::size_t group, Picoseconds end);
  bool await_exchange(LaneStage& here, std::size_t rank);
  bool await_background(std::size_t lane_stage, std::size_t rank);
  void run_background(std::size_t group_stage, std::size_t tensor);
  void end_background(std::size_t group_stage, std::size_t tensor, Picoseconds end);
  [[nodiscard]] std::size_t stage_of_group(const LaneStage& here) const {
    return at(here.program->lockstep) * s_.stages + here.stage;
  }

  // The step's end.
  void fill_bucket(std::size_t number, std::size_t bucket, Picoseconds at, std::size_t lane,
                   std::size_t rank);
  void leave_stage(StageEndRun& end, Picoseconds at);
  void run_end(std::size_t number);

  void count(const LaneStage& here, const Rank& k, Stream stream, Picoseconds time);

  State& s_;
  std::vector<std::size_t> lanes_;
  FlowNetwork network_;
  std::priority_queue<Pending, std::vector<Pending>, StartsLater> pending_;
  std::vector<Place> ready_;
  ExposedTime exposed_;
  std::vector<StartedFlow> flows_;
  Picoseconds pause_ = FlowNetwork::kNever;  // the step's end may begin
};

}  // namespace equipoise::contended
