// The event loop of a contended run: lanes that can influence each other, and the flows between their GPUs.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/contended_run.h"
#include "sim/step/contended_state.h"
#include "sim/step/flow_network.h"

namespace equipoise::contended {

class LaneSet {
 public:
  // Runs these lanes.
  LaneSet(State& state, std::vector<std::size_t> lanes);

  // All ranks begin.
  void begin();
  // Runs until nothing more can happen. A set of only some lanes (State::joint is false) stops at the first
  // moment at which the step's end may begin.
  void run(bool reports);
  // Takes over the lanes of another set and continues with them.
  void absorb(LaneSet& other);
  // Includes the step's end from now on, which earlier events may have begun.
  void join_ends();

  [[nodiscard]] ExposedTime& exposed() { return exposed_; }
  [[nodiscard]] const FlowNetwork& network() const { return network_; }
  [[nodiscard]] std::vector<StartedFlow>& flows() { return flows_; }

 private:
  // A flow's tag says what it carries.
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

  // When the collective ends; kUnknown if it is a flow, whose end finish(tag) reports.
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

  // The functions of the step's end.
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
  Picoseconds pause_ = FlowNetwork::kNever;  // the first time at which the step's end may begin
};

}  // namespace equipoise::contended
