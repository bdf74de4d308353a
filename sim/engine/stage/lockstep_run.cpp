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

std::size_t index_of(ModelPart layer) {
  return static_cast<std::size_t>(kind_of(layer));
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

LockstepRun::LockstepRun(const Crew& crew, std::span<const LockstepLane> lanes, const GradientSync& gradients,
                         const StepOptions& options, std::vector<StageOp>* ops)
    : crew_(crew), lanes_(lanes), gradients_(gradients) {
  for (const LockstepLane& lane : lanes)
    runs_.push_back({lane.plan->schedule, lane.plan->micro_batches, lane.costs, options.blocking_sends,
                     lane.plan->lane, *lane.accounts, ops, lane.plan->expert_group.size(), lane.plan->real});
  latest_.resize(at(crew.expert_groups));
  longest_.resize(at(crew.expert_groups));
}

std::vector<LaneResult> LockstepRun::run(Picoseconds start) {
  const Schedule& first = crew_.lanes.front().schedule;
  position_.assign(first.ops.size(), 0);
  networks_.assign(first.ops.size(), {});
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
    for (const Picoseconds t : lanes_[l].accounts->recompute) runs_[l].result.recompute += t;
    runs_[l].result.useful -= runs_[l].result.recompute;
    runs_[l].result.context = static_cast<int>(runs_[l].ranks);
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
  network_ = &networks_[at(stage)];
  std::vector<At> inside;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    LaneEngine& engine = *lanes_[l].engine;
    const CrewLane& plan = *lanes_[l].plan;
    const int v = engine.virtual_stage(ops[l], stage);
    const bool fills =
        gradients_.fills_buckets(v) && (crew_.ends_step || !gradients_.reduces_each_micro_batch());
    inside.push_back({plan, lanes_[l].costs[at(ops[l].micro_batch)], engine.clock(),
                      fills ? engine.releases(runs_[l], ops[l], stage) : nullptr,
                      engine.recomputed_layers(v, plan.micro_batches[at(ops[l].micro_batch)])});
  }
  const int v = lanes_.front().engine->virtual_stage(ops.front(), stage);
  await(inside);
  if (ops.front().kind == OpKind::W)
    weights(inside, v);
  else if (ops.front().kind == OpKind::B)
    backward(inside, v, most_recomputed(crew_, *lanes_.front().engine, stage, position_[at(stage)]),
             runs_.front().gradient_op == OpKind::W);
  else
    forward(inside, v);
  if (position_[at(stage)] + 1 == crew_.lanes.front().schedule.ops[at(stage)].size()) await(inside);
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

// One of ZeRO's collectives: it starts when the last rank asks for it and the one before is done.
void LockstepRun::issue(const std::vector<At>& lanes, const Op& collective) {
  for (const At& lane : lanes)
    for (const Picoseconds clock : lane.clock) network_->end = std::max(network_->end, clock);
  network_->end += collective.duration;
  network_->issued += collective.duration;
}

void LockstepRun::await(std::vector<At>& lanes) {
  for (At& lane : lanes)
    for (Picoseconds& clock : lane.clock) {
      exposed_seconds_ += to_seconds(std::clamp<Picoseconds>(network_->end - clock, 0, network_->issued));
      clock = std::max(clock, network_->end);
    }
  network_->issued = 0;
}

// A part's gradients are there: they fill a bucket, wait for the end of the step, or are reduced at once.
void LockstepRun::end_part(std::vector<At>& lanes, ModelPart part, bool reduces) {
  for (const At& lane : lanes) lane.note();
  if (reduces && lanes.front().layer_ends == nullptr) issue(lanes, gradients_.reduce_of(part));
}

void LockstepRun::forward(std::vector<At>& lanes, int v) {
  const std::vector<ModelPart>& parts = gradients_.backward_parts(v);  // from the last on
  const bool gathers = gradients_.shards_parameters();
  if (gathers) {
    issue(lanes, gradients_.gather_of(parts.back()));
    await(lanes);
  }
  for (std::size_t i = parts.size(); i-- > 0;) {
    const bool more = gathers && i > 0;
    if (more) issue(lanes, gradients_.gather_of(parts[i - 1]));
    if (is_layer(parts[i]))
      walk_layer(lanes, [k = index_of(parts[i])](const At& lane) { return &lane.cost.forward[k]; });
    else
      for (At& lane : lanes)
        add(lane.clock,
            (parts[i] == ModelPart::head ? lane.cost.head_forward : lane.cost.embed_forward).total);
    if (more) await(lanes);
  }
}

// From the last layer to the first; the recomputed ones are the stage's first.
void LockstepRun::backward(std::vector<At>& lanes, int v, int recomputed, bool split) {
  const std::vector<ModelPart>& parts = gradients_.backward_parts(v);
  const bool gathers = gradients_.shards_parameters();
  const bool reduces = gradients_.reduces_each_micro_batch() && !split;
  if (gathers) {
    issue(lanes, gradients_.gather_of(parts.front()));
    await(lanes);
  }
  int layer = lanes_.front().engine->layers(v).total();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (gathers && i + 1 < parts.size() && parts[i + 1] != ModelPart::embedding)
      issue(lanes, gradients_.gather_of(parts[i + 1]));
    if (is_layer(parts[i])) {
      --layer;
      backward_layer(lanes, index_of(parts[i]), layer, layer < recomputed, split);
    } else {
      for (At& lane : lanes)
        add(lane.clock,
            (parts[i] == ModelPart::head ? lane.cost.head_backward : lane.cost.embed_backward).total);
    }
    if (gathers) await(lanes);
    end_part(lanes, parts[i], reduces);
  }
}

void LockstepRun::backward_layer(std::vector<At>& lanes, std::size_t kind, int layer, bool recomputed,
                                 bool split) {
  if (recomputed)
    walk_layer(lanes, [kind, layer](const At& lane) -> const LayerTimeline* {
      return layer < lane.recomputed ? &lane.cost.forward[kind] : nullptr;
    });
  walk_layer(lanes, [kind, split](const At& lane) {
    return split ? &lane.cost.input_gradient[kind] : &lane.cost.backward[kind];
  });
}

// The ends' weight gradients were made by the input half; they leave with the layers'.
void LockstepRun::weights(std::vector<At>& lanes, int v) {
  const std::vector<ModelPart>& parts = gradients_.backward_parts(v);
  const bool reduces = gradients_.reduces_each_micro_batch();
  for (const ModelPart part : parts) {
    if (!is_layer(part)) continue;
    for (At& lane : lanes) add(lane.clock, lane.cost.weight_gradient[index_of(part)]);
    if (gradients_.shards_parameters()) await(lanes);
    end_part(lanes, part, reduces);
  }
  for (const ModelPart part : parts)
    if (reduces && !is_layer(part) && lanes.front().layer_ends == nullptr)
      issue(lanes, gradients_.reduce_of(part));
  for (const At& lane : lanes) lanes_.front().engine->release_ends(v, lane.layer_ends);
}

}  // namespace equipoise
