// The time of one op of a virtual stage: the walk over its parts (stage_walk.h) at the durations of a
// micro-batch's cost.
#include <algorithm>
#include <cstdlib>

#include "policies/base/index.h"
#include "sim/engine/stage/lane_engine.h"

namespace equipoise {
namespace {

void add(std::span<Picoseconds> clock, const std::vector<Picoseconds>& durations) {
  for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += durations[r];
}

// What all three walks have in common: a lane on its own makes no collectives with others.
struct LaneWalk {
  const MicroBatchCost& cost;
  std::span<Picoseconds> clock;
  std::vector<Picoseconds>* filled = nullptr;

  void gather(ModelPart) const {}
  void wait() const {}
  void done(const WalkPart& part) const {
    if (filled != nullptr) (*filled)[at(part.bucket)] = *std::max_element(clock.begin(), clock.end());
  }
};

struct Forward : LaneWalk {
  void work(const WalkPart& part) const {
    if (is_layer(part.part)) return advance(cost.forward[index_of(part.part)], part.layers, clock);
    add(clock, (part.part == ModelPart::head ? cost.head_forward : cost.embed_forward).total);
  }
};

// From the last layer to the first; the recomputed ones are the stage's first.
struct Backward : LaneWalk {
  int recomputed;
  void work(const WalkPart& part) const {
    if (!is_layer(part.part))
      return add(clock, (part.part == ModelPart::head ? cost.head_backward : cost.embed_backward).total);
    const std::size_t k = index_of(part.part);
    const int full = part.recomputed_of(recomputed);
    advance(cost.backward[k], part.layers - full, clock);
    advance(cost.full[k], full, clock);
  }
};

// The half of a split backward that makes input gradients; layer by layer.
struct InputGradients : LaneWalk {
  int recomputed;
  void work(const WalkPart& part) const {
    if (!is_layer(part.part))
      return add(clock, (part.part == ModelPart::head ? cost.head_backward : cost.embed_backward).total);
    const std::size_t k = index_of(part.part);
    advance(cost.forward[k], part.recomputed_of(recomputed), clock);
    advance(cost.input_gradient[k], part.layers, clock);
  }
};

struct Weights : LaneWalk {
  void work(const WalkPart& part) const {
    if (!is_layer(part.part)) return;
    const std::vector<Picoseconds>& layer = cost.weight_gradient[index_of(part.part)];
    for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += part.layers * layer[r];
  }
};

}  // namespace

// `filled`: one entry a bucket, or null.
void LaneEngine::apply(const StageWork& work, const MicroBatchCost& cost, std::span<Picoseconds> clock,
                       std::vector<Picoseconds>* filled) const {
  const int v = work.virtual_stage;
  const bool each = filled != nullptr;
  if (each) filled->resize(walks_->buckets(v).size());
  switch (work.kind) {
    case OpKind::F:
    case OpKind::D:
    case OpKind::R:
      return walk_stage(walks_->forward(v), false, Forward{{cost, clock}});
    case OpKind::B:
      if (work.half)
        return walk_stage(walks_->backward(v), true, InputGradients{{cost, clock}, work.recomputed});
      return walk_stage(walks_->backward(v), each, Backward{{cost, clock, filled}, work.recomputed});
    case OpKind::W:
      return walk_stage(walks_->weights(v), each, Weights{{cost, clock, filled}});
  }
  std::abort();
}

namespace {

// A forward and the backward beside it.
struct BothWays {
  Forward forward_walk;
  Backward backward_walk;
  std::span<Picoseconds> exposed;  // of the exchanges of layers that run side by side, by rank

  void forward(const WalkPart& part) const { forward_walk.work(part); }
  void backward(const WalkPart& part) const { backward_walk.work(part); }
  void done(const WalkPart& part) const { backward_walk.done(part); }
  void both(const WalkPart& f, const WalkPart& b) const {
    const MicroBatchCost& forward_cost = forward_walk.cost;
    const MicroBatchCost& backward_cost = backward_walk.cost;
    const std::size_t k = index_of(b.part);
    advance(backward_cost.forward[k], b.recomputed_of(backward_walk.recomputed), backward_walk.clock);
    advance_pair(forward_cost.forward[index_of(f.part)], backward_cost.backward[k], backward_walk.clock,
                 exposed);
  }
};

}  // namespace

LaneEngine::Pair LaneEngine::pair_of(const Run& run, int stage, std::size_t position) const {
  const ScheduleOp& op = run.schedule.ops[at(stage)][position];
  const ScheduleOp& second = run.schedule.ops[at(stage)][position + 1];
  return {virtual_stage(op, stage), virtual_stage(second, stage), run.micro_batches[at(second.micro_batch)],
          cost_of(run, op, stage, position), cost_of(run, second, stage, position + 1)};
}

void LaneEngine::apply_pair(const Pair& pair, std::span<Picoseconds> clock,
                            std::vector<Picoseconds>* filled) {
  if (filled != nullptr) filled->resize(walks_->buckets(pair.backward_stage).size());
  exposed_.assign(clock.size(), 0);
  const int recomputed = walks_->recomputed_layers(pair.backward_stage, pair.backward_batch);
  walk_pair(walks_->forward(pair.forward_stage), walks_->backward(pair.backward_stage),
            BothWays{Forward{{pair.forward, clock}}, Backward{{pair.backward, clock, filled}, recomputed},
                     exposed_});
}

// With all ranks starting together; leaves in exposed_ what is exposed of its exchanges.
Picoseconds LaneEngine::pair_alone(const Pair& pair) {
  zero_.assign(at(pair.forward.ranks), 0);
  apply_pair(pair, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

Picoseconds LaneEngine::alone(const StageWork& work, const MicroBatchCost& cost) {
  zero_.assign(at(cost.ranks), 0);
  apply(work, cost, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

}  // namespace equipoise
