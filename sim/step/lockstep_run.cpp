#include "sim/step/lockstep_run.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {

static void add_durations(std::span<Picoseconds> clock, const std::vector<Picoseconds>& durations) {
  for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += durations[r];
}

struct LockstepRun::At {
  const LockstepLane& plan;
  const MicroBatchCost& cost;
  std::span<Picoseconds> clock;
  std::vector<Picoseconds>* filled;  // when its buckets are full; null if it fills none
  int recomputed;                    // layers that this lane itself recomputes
  std::span<const MicroBatchCost> costs;
  const std::vector<std::int32_t>* again;  // LaneArrivals::again of the op

  // The forward of a layer that some lane recomputes, as this lane's work or for others; null if it is
  // nothing.
  [[nodiscard]] const LayerTimeline* recompute(std::size_t kind, int number) const {
    if (again != nullptr && is_moe(static_cast<LayerKind>(kind)))
      return &costs[at((*again)[at(number)])].again[kind];
    return number < recomputed ? &cost.again[kind] : nullptr;
  }
};

// Runs the parts of an op on all lanes at once; the base of the three kinds of ops.
struct LockstepRun::Inside {
  LockstepRun& run;
  std::vector<At>& lanes;
  bool reduces = false;  // whether gradients are reduced as soon as they are there

  void gather(ModelPart part) const { run.issue(lanes, run.gradients_.gather_of(part)); }
  void wait() const { run.await(lanes); }
  // A part's gradients fill a bucket, wait for the end of the step, or are reduced at once.
  void done(const OrderedPart& part) const {
    for (const At& lane : lanes)
      if (lane.filled != nullptr) (*lane.filled)[at(part.bucket)] = *std::ranges::max_element(lane.clock);
    if (reduces && lanes.front().filled == nullptr) run.issue(lanes, run.gradients_.reduce_of(part.part));
  }
};

struct LockstepRun::Forward : Inside {
  void work(const OrderedPart& part) const {
    if (is_layer(part.part))
      return run.run_layer(lanes,
                           [k = index_of(part.part)](const At& lane) { return &lane.cost.forward[k]; });
    for (At& lane : lanes)
      add_durations(lane.clock,
                    (part.part == ModelPart::head ? lane.cost.head_forward : lane.cost.embed_forward).total);
  }
};

struct LockstepRun::Backward : Inside {
  int most_recomputed;  // recomputed by any of the lanes
  bool split;
  void work(const OrderedPart& part) const {
    if (is_layer(part.part)) return layer(index_of(part.part), part.first);
    for (At& lane : lanes)
      add_durations(
          lane.clock,
          (part.part == ModelPart::head ? lane.cost.head_backward : lane.cost.embed_backward).total);
  }
  void recompute(std::size_t kind, int number) const {
    if (number < most_recomputed)
      run.run_layer(lanes, [kind, number](const At& lane) { return lane.recompute(kind, number); });
  }
  void layer(std::size_t kind, int number) const {
    recompute(kind, number);
    run.run_layer(lanes, [kind, half = split](const At& lane) {
      return half ? &lane.cost.input_gradient[kind] : &lane.cost.backward[kind];
    });
  }
};

// Every lane runs a layer of a forward next to a layer of a backward.
struct LockstepRun::LayerPair {
  LockstepRun& run;
  std::vector<At>&forward_lanes, &backward_lanes;
  std::size_t forward_kind, backward_kind;

  [[nodiscard]] const LayerTimeline& timeline(PairSide side, const At& lane) const {
    return side == PairSide::forward ? lane.cost.forward[forward_kind] : lane.cost.backward[backward_kind];
  }
  [[nodiscard]] std::vector<At>& lanes(PairSide side) const {
    return side == PairSide::forward ? forward_lanes : backward_lanes;
  }
  void advance(PairSide side, std::size_t part) const {
    for (At& lane : lanes(side)) advance_part(timeline(side, lane), part, lane.clock);
  }
  void begin(PairSide side, std::size_t exchange) const {
    run.begin_exchange(lanes(side),
                       [&](const At& lane) { return &timeline(side, lane).exchanges[exchange]; });
    for (At& lane : lanes(side)) add_durations(lane.clock, timeline(side, lane).exchanges[exchange].under);
  }
  void await() const { run.await_exchange(forward_lanes); }
};

struct LockstepRun::BothWays {
  Forward forward_order;
  Backward backward_order;

  void forward(const OrderedPart& part) const { forward_order.work(part); }
  void backward(const OrderedPart& part) const { backward_order.work(part); }
  void done(const OrderedPart& part) const { backward_order.done(part); }
  void both(const OrderedPart& f, const OrderedPart& b) const {
    const std::size_t of_forward = index_of(f.part), of_backward = index_of(b.part);
    backward_order.recompute(of_backward, b.first);
    const std::size_t exchanges = forward_order.lanes.front().cost.forward[of_forward].exchanges.size();
    walk_layer_pair(exchanges, LayerPair{forward_order.run, forward_order.lanes, backward_order.lanes,
                                         of_forward, of_backward});
  }
};

struct LockstepRun::Weights : Inside {
  void work(const OrderedPart& part) const {
    if (!is_layer(part.part)) return;
    for (At& lane : lanes) add_durations(lane.clock, lane.cost.weight_gradient[index_of(part.part)]);
  }
};

LockstepRun::LockstepRun(const LockstepGroup& lockstep, std::span<const RunningLane> lanes,
                         const GradientSync& gradients, const StepOptions& options, std::vector<StageOp>* ops)
    : lockstep_(lockstep), lanes_(lanes), gradients_(gradients) {
  for (const RunningLane& lane : lanes)
    runs_.push_back({lane.plan->schedule, lane.plan->micro_batches, lane.costs, options.blocking_sends,
                     lane.plan->lane, *lane.accounts, ops, lane.plan->expert_group.size(), lane.plan->real,
                     &lane.plan->arrivals});
  exchange_end_.resize(at(lockstep.expert_groups));
  longest_.resize(at(lockstep.expert_groups));
}

std::vector<LaneResult> LockstepRun::run(Picoseconds start) {
  const Schedule& first = lockstep_.lanes.front().schedule;
  position_.assign(first.ops.size(), 0);
  networks_.assign(first.ops.size(), {});
  for (std::size_t l = 0; l < lanes_.size(); ++l) lanes_[l].engine->begin(runs_[l], start);
  sweep_stages(at(first.stages), [&](std::size_t stage) { return run_ready(static_cast<int>(stage)); });
  std::vector<LaneResult> results;
  for (std::size_t l = 0; l < lanes_.size(); ++l)
    results.push_back(lanes_[l].engine->finish(runs_[l], start));
  return results;
}

bool LockstepRun::run_ready(int stage) {
  bool moved = false;
  std::vector<ScheduleOp> ops(lanes_.size());
  for (;;) {
    for (std::size_t l = 0; l < lanes_.size(); ++l)
      if (!lanes_[l].engine->ready(runs_[l], stage)) return moved;
    for (std::size_t l = 0; l < lanes_.size(); ++l) ops[l] = lanes_[l].engine->open(runs_[l], stage);
    run_op(stage, ops);
    for (std::size_t l = 0; l < lanes_.size(); ++l) lanes_[l].engine->close(runs_[l], ops[l], stage);
    position_[at(stage)] += ops.front().with_next ? 2 : 1;
    moved = true;
  }
}

// What each lane's op works on; clocks belong to the lanes' engines.
std::vector<LockstepRun::At> LockstepRun::inside(int stage, std::size_t position,
                                                 const std::vector<ScheduleOp>& ops) {
  std::vector<At> inside;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    LaneEngine& engine = *lanes_[l].engine;
    const LockstepLane& plan = *lanes_[l].plan;
    const int v = engine.virtual_stage(ops[l], stage);
    const bool has_buckets =
        gradients_.fills_buckets(v) && (lockstep_.ends_step || !gradients_.reduces_each_micro_batch());
    inside.push_back({plan, lanes_[l].costs[plan.arrivals.entry_of(ops[l], stage, position)], engine.clock(),
                      has_buckets ? engine.fills(ops[l], stage) : nullptr,
                      engine.orders().recomputed_layers(v, plan.micro_batches[at(ops[l].micro_batch)]),
                      lanes_[l].costs, plan.arrivals.again_of(stage, position)});
    if (inside.back().filled != nullptr) inside.back().filled->resize(engine.orders().buckets(v).size());
  }
  return inside;
}

void LockstepRun::run_op(int stage, std::vector<ScheduleOp>& ops) {
  network_ = &networks_[at(stage)];
  if (ops.front().with_next) return run_pair(stage, ops);
  std::vector<At> lanes = inside(stage, position_[at(stage)], ops);
  const int v = lanes_.front().engine->virtual_stage(ops.front(), stage);
  await(lanes);
  const PartOrders& orders = lanes_.front().engine->orders();
  const bool reduces = gradients_.reduces_each_micro_batch();
  const bool split = lanes_.front().engine->is_half(ops.front());
  if (ops.front().kind == OpKind::W)
    each_part(orders.weights(v), true, Weights{{*this, lanes, reduces}});
  else if (ops.front().kind == OpKind::B)
    each_part(orders.backward(v), true,
              Backward{{*this, lanes, reduces && !split},
                       most_recomputed(lockstep_, orders, stage, position_[at(stage)]),
                       split});
  else
    each_part(orders.forward(v), true, Forward{{*this, lanes}});
  if (position_[at(stage)] + 1 == lockstep_.lanes.front().schedule.ops[at(stage)].size()) await(lanes);
}

void LockstepRun::run_pair(int stage, const std::vector<ScheduleOp>& ops) {
  std::vector<ScheduleOp> seconds;
  for (std::size_t l = 0; l < lanes_.size(); ++l)
    seconds.push_back(*lanes_[l].engine->partner(runs_[l], stage));
  const std::size_t position = position_[at(stage)];
  std::vector<At> forward = inside(stage, position, ops), backward = inside(stage, position + 1, seconds);
  const LaneEngine& engine = *lanes_.front().engine;
  const PartOrders& orders = engine.orders();
  await(forward);
  each_part_of_pair(orders.forward(engine.virtual_stage(ops.front(), stage)),
                    orders.backward(engine.virtual_stage(seconds.front(), stage)),
                    BothWays{Forward{{*this, forward}},
                             Backward{{*this, backward, gradients_.reduces_each_micro_batch()},
                                      most_recomputed(lockstep_, orders, stage, position_[at(stage)] + 1),
                                      false}});
  if (position_[at(stage)] + 2 == lockstep_.lanes.front().schedule.ops[at(stage)].size()) await(forward);
}

// Runs one layer of every lane. A lane with a null timeline only takes part in the exchanges.
template <class TimelineOf>
void LockstepRun::run_layer(std::vector<At>& lanes, const TimelineOf& timeline_of) {
  std::size_t exchanges = 0;
  for (const At& lane : lanes)
    if (const LayerTimeline* t = timeline_of(lane)) exchanges = t->exchanges.size();
  for (std::size_t part = 0;; ++part) {
    for (At& lane : lanes)
      if (const LayerTimeline* t = timeline_of(lane)) advance_part(*t, part, lane.clock);
    if (part == exchanges) return;
    begin_exchange(lanes, [&](const At& lane) {
      const LayerTimeline* const t = timeline_of(lane);
      return t == nullptr ? nullptr : &t->exchanges[part];
    });
    for (At& lane : lanes)
      if (const LayerTimeline* t = timeline_of(lane)) add_durations(lane.clock, t->exchanges[part].under);
    await_exchange(lanes);
  }
}

// The exchange starts in each expert group when its last member arrives, and takes as long as the longest
// member says. A lane with a null exchange takes part without a time of its own.
template <class ExchangeOf>
void LockstepRun::begin_exchange(const std::vector<At>& lanes, const ExchangeOf& exchange_of) {
  std::fill(exchange_end_.begin(), exchange_end_.end(), 0);
  std::fill(longest_.begin(), longest_.end(), 0);
  for (const At& lane : lanes) {
    const LayerTimeline::Exchange* const exchange = exchange_of(lane);
    for (std::size_t r = 0; r < lane.clock.size(); ++r) {
      const std::size_t g = at(lane.plan.expert_group[r]);
      exchange_end_[g] = std::max(exchange_end_[g], lane.clock[r]);
      if (exchange != nullptr) longest_[g] = std::max(longest_[g], exchange->duration[r]);
    }
  }
  for (std::size_t g = 0; g < longest_.size(); ++g) exchange_end_[g] += longest_[g];
}

// A rank goes on when both the exchange and what it ran meanwhile have ended.
void LockstepRun::await_exchange(std::vector<At>& lanes) {
  for (At& lane : lanes)
    for (std::size_t r = 0; r < lane.clock.size(); ++r)
      wait_until(lane.clock[r], exchange_end_[at(lane.plan.expert_group[r])]);
}

// Starts one of ZeRO's collectives when the last rank asks for it and the one before has ended.
void LockstepRun::issue(const std::vector<At>& lanes, const Op& collective) {
  for (const At& lane : lanes)
    for (const Picoseconds clock : lane.clock) network_->end = std::max(network_->end, clock);
  network_->end += collective.duration;
  network_->issued += collective.duration;
}

void LockstepRun::await(std::vector<At>& lanes) {
  for (At& lane : lanes)
    for (Picoseconds& clock : lane.clock) {
      exposed_seconds_ += to_seconds(std::min(wait_until(clock, network_->end), network_->issued));
    }
  network_->issued = 0;
}

}  // namespace equipoise
