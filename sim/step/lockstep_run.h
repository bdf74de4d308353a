// Runs the lanes of a lockstep group op by op at stage fidelity, all at once: they wait for each other at
// expert-parallel exchanges, and at the collectives of ZeRO-2 and 3.
//
// ZeRO-2 that reduces each micro-batch: gradients are reduced with every backward over all replicas, in the
// background, one part of the model after another; the stage's next op waits for what is left. Those of a
// step's last backward are buckets (stage_end.h), for which nothing but the optimizer waits.
//
// ZeRO-3 (FSDP): parameters are gathered and gradients reduced part by part, over all replicas
// (part_order.h). The gather of the next part runs under the part before it, and so does the reduction of the
// one before; both share the network, one after another. The first gather of an op and its last reduction are
// exposed.
//
// O(ops x layers x ranks of the lockstep group).
#pragma once

#include <span>
#include <vector>

#include "sim/step/gradient_sync.h"
#include "sim/step/lane_engine.h"
#include "sim/step/lockstep.h"

namespace equipoise {

// One lane of the lockstep group while it runs.
struct RunningLane {
  const LockstepLane* plan = nullptr;
  std::span<const MicroBatchCost> costs;  // by entry of its arrivals; without arrivals, by micro-batch
  LaneEngine* engine = nullptr;
  LaneAccounts* accounts = nullptr;
};

class LockstepRun {
 public:
  LockstepRun(const LockstepGroup& lockstep, std::span<const RunningLane> lanes,
              const GradientSync& gradients, const StepOptions& options, std::vector<StageOp>* ops);

  // Results by lane. Throws std::logic_error, naming who waits, if the schedules cannot run.
  std::vector<LaneResult> run(Picoseconds start);
  // Time that ranks waited for parameters and gradients to be gathered and reduced, without waiting for other
  // lanes; summed over ranks.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }

 private:
  struct At;  // one lane in the running op
  struct Inside;
  struct Forward;
  struct Backward;
  struct Weights;
  struct BothWays;
  struct LayerPair;
  bool run_ready(int stage);
  void run_op(int stage, std::vector<ScheduleOp>& ops);
  // `position` is the place of the ops on the stage.
  std::vector<At> inside(int stage, std::size_t position, const std::vector<ScheduleOp>& ops);
  void run_pair(int stage, const std::vector<ScheduleOp>& ops);
  template <class TimelineOf>
  void run_layer(std::vector<At>& lanes, const TimelineOf& timeline_of);
  template <class ExchangeOf>
  void begin_exchange(const std::vector<At>& lanes, const ExchangeOf& exchange_of);
  void await_exchange(std::vector<At>& lanes);
  void issue(const std::vector<At>& lanes, const Op& collective);
  void await(std::vector<At>& lanes);

  const LockstepGroup& lockstep_;
  std::span<const RunningLane> lanes_;
  const GradientSync& gradients_;
  std::vector<LaneEngine::Run> runs_;
  std::vector<std::size_t> position_;                // by stage
  std::vector<Picoseconds> exchange_end_, longest_;  // by expert group, for the exchange under way
  // When the last of a stage's ZeRO collectives ends, and the time of those not yet awaited.
  struct Network {
    Picoseconds end = 0, issued = 0;
  };
  std::vector<Network> networks_;  // by stage
  Network* network_ = nullptr;
  double exposed_seconds_ = 0;
};

}  // namespace equipoise
