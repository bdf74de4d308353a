// What one op of the schedule takes on the CP ranks of a lane that waits for no other: its parts in order
// (part_order.h) at the durations of its micro-batch's cost.
//
// Equal layers in a row are one max-plus step (LayerTimeline), so that an op costs as much as it has kinds of
// parts, not layers.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/clock.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/step/part_order.h"

namespace equipoise {

// What an op does on its virtual stage, whatever its micro-batch costs there.
struct StageWork {
  OpKind kind = OpKind::F;
  bool half = false;  // whether a B makes only input gradients
  int virtual_stage = 0;
  int recomputed = 0;  // layers that a B recomputes in full
};

// A forward and a backward that are issued together.
struct PairWork {
  int forward_stage, backward_stage;  // virtual
  int recomputed;                     // layers that the backward recomputes in full
  const MicroBatchCost &forward, &backward;
};

class OpTimer {
 public:
  explicit OpTimer(std::shared_ptr<const PartOrders> orders) : orders_(std::move(orders)) {}

  // Moves the ranks' clocks over an op, or over a pair. `filled` receives when each gradient bucket is full;
  // it is null if the op fills none.
  void advance(const StageWork& work, const MicroBatchCost& cost, std::span<Picoseconds> clock,
               std::vector<Picoseconds>* filled) const;
  void advance(const PairWork& pair, std::span<Picoseconds> clock, std::vector<Picoseconds>* filled);

  // How long they take when all ranks start together.
  Picoseconds alone(const StageWork& work, const MicroBatchCost& cost);
  Picoseconds alone(const PairWork& pair);
  Picoseconds alone(const LayerTimeline& layer, int layers);
  // By rank, what the latest pair exposed of exchanges while its layers ran side by side.
  [[nodiscard]] std::span<const Picoseconds> exposed() const { return exposed_; }

 private:
  std::shared_ptr<const PartOrders> orders_;
  std::vector<Picoseconds> zero_, exposed_;
};

}  // namespace equipoise
