#include "sim/engine/stage/lockstep_run.h"

#include <algorithm>

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

void add(std::span<Picoseconds> clock, const std::vector<Picoseconds>& durations) {
  for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += durations[r];
}

}  // namespace

struct LockstepRun::At {
  const CrewLane& plan;
  const MicroBatchCost& cost;
  std::span<Picoseconds> clock;
  std::vector<Picoseconds>* layer_ends;  // null: the op releases no gradient buckets
  int recomputed;                        // layers of this lane's own

  void note() const {
    if (layer_ends != nullptr) layer_ends->push_back(*std::max_element(clock.begin(), clock.end()));
  }
};

LockstepRun::LockstepRun(const Crew& crew, std::span<const LockstepLane> lanes, const GradientSync* sharded,
                         const StepOptions& options, std::vector<StageOp>* ops)
    : crew_(crew), lanes_(lanes), sharded_(sharded) {
  for (const LockstepLane& lane : lanes)
    runs_.push_back({lane.plan->schedule, lane.plan->micro_batches, lane.costs, options.blocking_sends,
                     lane.plan->lane, *lane.accounts, ops, lane.plan->expert_group.size(), lane.plan->real});
  latest_.resize(at(crew.expert_groups));
  longest_.resize(at(crew.expert_groups));
}

std::vector<LaneResult> LockstepRun::run(Picoseconds start) {
  const Schedule& first = crew_.lanes.front().schedule;
  position_.assign(first.ops.size(), 0);
  for (std::size_t l = 0; l < lanes_.size(); ++l) lanes_[l].engine->begin(runs_[l], start);
  // Stages wait only for each other: down for forwards and up for backwards until nothing moves.
  bool moved = true;
  while (moved) {
    moved = false;
    for (int s = 0; s < first.stages; ++s) moved |= run_ready(s);
    for (int s = first.stages; s-- > 0;) moved |= run_ready(s);
  }
  std::vector<LaneResult> results;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    for (int s = 0; s < first.stages; ++s)
      if (position_[at(s)] < first.ops[at(s)].size()) lanes_[l].engine->report_stall(runs_[l].schedule);
    for (const Picoseconds t : lanes_[l].accounts->recompute) runs_[l].result.useful -= t;
    runs_[l].result.makespan = lanes_[l].engine->end() - start;
    results.push_back(runs_[l].result);
  }
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
    ++position_[at(stage)];
    moved = true;
  }
}

void LockstepRun::run_op(int stage, std::vector<ScheduleOp>& ops) {
  std::vector<At> inside;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    LaneEngine& engine = *lanes_[l].engine;
    const CrewLane& plan = *lanes_[l].plan;
    const int v = engine.virtual_stage(ops[l], stage);
    inside.push_back({plan, lanes_[l].costs[at(ops[l].micro_batch)], engine.clock(),
                      engine.releases(runs_[l], ops[l], stage),
                      engine.recomputed_layers(v, plan.micro_batches[at(ops[l].micro_batch)])});
  }
  const int v = lanes_.front().engine->virtual_stage(ops.front(), stage);
  if (ops.front().kind == OpKind::W)
    weights(inside, v);
  else if (ops.front().kind == OpKind::B)
    backward(inside, v, most_recomputed(crew_, *lanes_.front().engine, stage, position_[at(stage)]),
             runs_.front().gradient_op == OpKind::W);
  else
    forward(inside, v);
}

// One layer of every lane; a lane whose timeline is null only takes part in the exchanges.
template <class TimelineOf>
void LockstepRun::walk_layer(std::vector<At>& lanes, const TimelineOf& timeline_of) {
  std::size_t exchanges = 0;
  for (const At& lane : lanes)
    if (const LayerTimeline* t = timeline_of(lane)) exchanges = t->exchanges.size();
  for (std::size_t part = 0;; ++part) {
    for (At& lane : lanes)
      if (const LayerTimeline* t = timeline_of(lane)) advance_part(*t, part, lane.clock);
    if (part == exchanges) return;
    std::fill(latest_.begin(), latest_.end(), 0);
    std::fill(longest_.begin(), longest_.end(), 0);
    for (const At& lane : lanes) {
      const LayerTimeline* const t = timeline_of(lane);
      for (std::size_t r = 0; r < lane.clock.size(); ++r) {
        const std::size_t g = at(lane.plan.expert_group[r]);
        latest_[g] = std::max(latest_[g], lane.clock[r]);
        if (t != nullptr) longest_[g] = std::max(longest_[g], t->exchanges[part].duration[r]);
      }
    }
    for (At& lane : lanes)
      for (std::size_t r = 0; r < lane.clock.size(); ++r) {
        const std::size_t g = at(lane.plan.expert_group[r]);
        lane.clock[r] = latest_[g] + longest_[g];
      }
  }
}

// One of ZeRO-3's collectives: it starts when the last rank asks for it and the one before is done.
void LockstepRun::issue(const std::vector<At>& lanes, Picoseconds duration) {
  for (const At& lane : lanes)
    for (const Picoseconds clock : lane.clock) network_ = std::max(network_, clock);
  network_ += duration;
  issued_ += duration;
}

void LockstepRun::await(std::vector<At>& lanes) {
  for (At& lane : lanes)
    for (Picoseconds& clock : lane.clock) {
      exposed_seconds_ += to_seconds(std::clamp<Picoseconds>(network_ - clock, 0, issued_));
      clock = std::max(clock, network_);
    }
  issued_ = 0;
}

void LockstepRun::forward(std::vector<At>& lanes, int v) {
  const LaneEngine& engine = *lanes_.front().engine;
  const StageLayers& layers = engine.layers(v);
  if (sharded_ != nullptr) {
    issue(lanes, sharded_->layer_gather());
    await(lanes);
  }
  if (v == 0)
    for (At& lane : lanes) add(lane.clock, lane.cost.embed_forward.total);
  int left = layers.total();
  for (std::size_t k = 0; k < kLayerKinds; ++k)
    for (int i = 0; i < layers.count[k]; ++i) {
      const bool gathers = sharded_ != nullptr && --left > 0;
      if (gathers) issue(lanes, sharded_->layer_gather());
      walk_layer(lanes, [k](const At& lane) { return &lane.cost.forward[k]; });
      if (gathers) await(lanes);
    }
  if (v == engine.last_virtual())
    for (At& lane : lanes) add(lane.clock, lane.cost.head_forward.total);
}

// From the last layer to the first; the recomputed ones are the stage's first.
void LockstepRun::backward(std::vector<At>& lanes, int v, int recomputed, bool split) {
  const LaneEngine& engine = *lanes_.front().engine;
  const StageLayers& layers = engine.layers(v);
  const bool reduces = sharded_ != nullptr && !split;
  if (sharded_ != nullptr) {
    issue(lanes, sharded_->layer_gather());
    await(lanes);
  }
  if (v == engine.last_virtual())
    for (At& lane : lanes) {
      add(lane.clock, lane.cost.head_backward.total);
      lane.note();
    }
  int layer = layers.total();
  for (std::size_t k = kLayerKinds; k-- > 0;)
    for (int i = 0; i < layers.count[k]; ++i) {
      --layer;
      if (sharded_ != nullptr && layer > 0) issue(lanes, sharded_->layer_gather());
      if (layer < recomputed)
        walk_layer(lanes, [k, layer](const At& lane) -> const LayerTimeline* {
          return layer < lane.recomputed ? &lane.cost.forward[k] : nullptr;
        });
      walk_layer(lanes, [k, split](const At& lane) {
        return split ? &lane.cost.input_gradient[k] : &lane.cost.backward[k];
      });
      if (sharded_ != nullptr) await(lanes);
      if (reduces && layer > 0) issue(lanes, sharded_->layer_reduce());
      for (const At& lane : lanes) lane.note();
    }
  if (v == 0)
    for (At& lane : lanes) {
      add(lane.clock, lane.cost.embed_backward.total);
      lane.note();
    }
  if (!reduces) return;
  issue(lanes, sharded_->layer_reduce());
  await(lanes);
}

void LockstepRun::weights(std::vector<At>& lanes, int v) {
  const LaneEngine& engine = *lanes_.front().engine;
  const StageLayers& layers = engine.layers(v);
  for (std::size_t k = kLayerKinds; k-- > 0;)
    for (int i = 0; i < layers.count[k]; ++i) {
      for (At& lane : lanes) {
        add(lane.clock, lane.cost.weight_gradient[k]);
        lane.note();
      }
      if (sharded_ == nullptr) continue;
      await(lanes);
      issue(lanes, sharded_->layer_reduce());
    }
  if (sharded_ != nullptr) await(lanes);
  for (const At& lane : lanes) engine.release_ends(v, lane.layer_ends);
}

}  // namespace equipoise
