// Lanes that can influence each other, and the flows between their GPUs: the event loop of a contended run.
#pragma once

#include <queue>
#include <vector>

#include "sim/engine/op/contended_state.h"

namespace equipoise::contended {

class Part {
 public:
  // Of these lanes.
  Part(State& state, std::vector<std::size_t> lanes);

  // All ranks begin.
  void begin();
  // Runs until nothing can happen any more; lanes that are not all (State::joint) at most to the first moment
  // at which the step's end may begin.
  void run(bool reports);
  // Goes on with the lanes of another part.
  void absorb(Part& other);
  // From now on with the step's end, which what happened so far may have begun.
  void join_ends();

  [[nodiscard]] ExposedTime& exposed() { return exposed_; }
  [[nodiscard]] const FlowNetwork& network() const { return network_; }
  [[nodiscard]] std::vector<StartedFlow>& flows() { return flows_; }

 private:
  // What a flow is, in its tag.
  enum class Kind : std::uint64_t { context, tensor, transfer, expert, replicas, background, bucket, step };
  static std::uint64_t tag_of(Kind kind, std::size_t a, std::size_t b) {
    return (static_cast<std::uint64_t>(kind) << 60) | (std::uint64_t{a} << 30) | std::uint64_t{b};
  }
  struct Pending {  // a flow that starts later
    Picoseconds at = 0;
    std::uint64_t tag = 0;
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
  Picoseconds launch(std::uint64_t tag, Picoseconds start, Picoseconds duration, double bytes,
                     const OpRoute& route);
  void finish(std::uint64_t tag, Picoseconds now);

  // Ranks.
  void wake(std::size_t cell, std::size_t rank);
  void run_ready();
  void advance(std::size_t cell, std::size_t rank);
  bool begin_op(Cell& cell, std::size_t rank);
  bool run_op(std::size_t cell, std::size_t rank);
  bool run_step(std::size_t cell, std::size_t rank, const OpBlock& block);
  void finish_op(std::size_t cell, std::size_t rank);
  void send(std::size_t cell, std::size_t rank, std::size_t scheduled);
  void arrive(std::size_t cell, std::size_t slot, Picoseconds at);
  [[nodiscard]] Picoseconds sent_until(const Cell& cell, std::size_t rank, std::size_t first,
                                       std::size_t last) const;
  void count_inputs(const Cell& cell, std::size_t rank);
  [[nodiscard]] Picoseconds duration(const Cell& cell, const Rank& k, std::size_t rank, const OpBlock& block,
                                     std::uint32_t step, SyncGroup sync, std::uint64_t key) const;
  void fill(Cell& cell, std::size_t rank, std::size_t bucket);
  void leave_lane(Cell& cell, std::size_t rank);
  void reach_barrier(std::size_t group, Picoseconds now);

  // Ops that meet others.
  bool meet(std::size_t cell, std::size_t rank, const OpBlock& block, SyncGroup sync);
  void end_meeting(std::size_t cell, SyncGroup sync, std::size_t group, Picoseconds end);
  void pass_meeting(Cell& cell, std::size_t rank, std::size_t groups, Picoseconds start, Picoseconds end);
  bool exchange(std::size_t cell, std::size_t rank, const OpStep& step);
  void join(Exchange& op, const Cell& cell, std::size_t rank, const OpStep& step) const;
  Picoseconds launch_exchange(std::uint64_t tag, const Cell& cell, const Exchange& op, SyncGroup sync,
                              std::size_t group, Picoseconds start);
  void note(std::size_t group_stage, const Exchange& op, std::size_t group);
  void end_exchange(std::size_t group_stage, SyncGroup sync, std::size_t group, Picoseconds end);
  bool await_exchange(Cell& cell, std::size_t rank);
  bool await_background(std::size_t cell, std::size_t rank);
  void run_background(std::size_t group_stage, std::size_t tensor);
  void end_background(std::size_t group_stage, std::size_t tensor, Picoseconds end);
  [[nodiscard]] std::size_t stage_of_group(const Cell& cell) const {
    return static_cast<std::size_t>(cell.program->lockstep) * s_.stages + cell.stage;
  }

  // The step's end.
  void fill_bucket(End& end, std::size_t bucket, Picoseconds at, std::int32_t lane, std::int32_t rank);
  void leave_stage(End& end, Picoseconds at);
  void run_end(std::size_t number);

  void count(const Cell& cell, const Rank& k, Stream stream, Picoseconds time);

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
