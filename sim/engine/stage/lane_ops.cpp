// The time of one op of a virtual stage: the walk over its parts (stage_walk.h) at the durations of a
// micro-batch's cost.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "sim/engine/stage/lane_engine.h"

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

std::size_t index_of(ModelPart layer) {
  return static_cast<std::size_t>(kind_of(layer));
}

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
void LaneEngine::apply(const ScheduleOp& op, int v, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                       std::span<Picoseconds> clock, std::vector<Picoseconds>* filled) {
  const bool each = filled != nullptr;
  if (each) filled->resize(walks_->buckets(v).size());
  switch (op.kind) {
    case OpKind::F:
    case OpKind::D:
    case OpKind::R:
      return walk_stage(walks_->forward(v), false, Forward{{cost, clock}});
    case OpKind::B: {
      const int recomputed = walks_->recomputed_layers(v, micro_batch);
      if (is_half(op))
        return walk_stage(walks_->backward(v), true, InputGradients{{cost, clock}, recomputed});
      return walk_stage(walks_->backward(v), each, Backward{{cost, clock, filled}, recomputed});
    }
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

Picoseconds LaneEngine::alone(const ScheduleOp& op, int v, const MicroBatch& micro_batch,
                              const MicroBatchCost& cost) {
  zero_.assign(at(cost.ranks), 0);
  apply(op, v, micro_batch, cost, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

namespace {

// Adds what an op computes, attends to and exposes on a stage to a lane's accounts.
struct Accounting {
  const MicroBatchCost& cost;
  LaneAccounts& accounts;
  Picoseconds* compute;
  Picoseconds* attention;

  void end(const EndCost& of_end) const {
    for (std::size_t r = 0; r < at(cost.ranks); ++r) compute[r] += of_end.compute[r];
    for (std::size_t s = 0; s < kStreams; ++s) accounts.exposed[s] += of_end.exposed[s];
  }
  void forward(std::size_t k, int layers) const {
    count(cost.compute_forward[k], cost.attention_forward, cost.exposed_forward[k], k, layers);
  }
  void backward(std::size_t k, int layers) const {
    count(cost.compute_backward[k], cost.attention_backward, cost.exposed_backward[k], k, layers);
  }
  void weights(std::size_t k, int layers) const {
    for (std::size_t r = 0; r < at(cost.ranks); ++r) compute[r] += layers * cost.weight_gradient[k][r];
  }
  [[nodiscard]] Picoseconds exposed() const {
    return std::accumulate(accounts.exposed.begin(), accounts.exposed.end(), Picoseconds{0});
  }

 private:
  void count(const std::vector<Picoseconds>& per_layer,
             const std::array<std::vector<Picoseconds>, kMasks>& attention_by_mask,
             const std::array<Picoseconds, kStreams>& exposed_by, std::size_t k, int layers) const {
    const auto& attention_of = attention_by_mask[mask_of(static_cast<LayerKind>(k))];
    for (std::size_t r = 0; r < at(cost.ranks); ++r) compute[r] += layers * per_layer[r];
    for (std::size_t r = 0; r < at(cost.ranks); ++r) attention[r] += layers * attention_of[r];
    for (std::size_t s = 0; s < kStreams; ++s) accounts.exposed[s] += layers * exposed_by[s];
  }
};

Accounting accounting_of(const MicroBatchCost& cost, int stage, LaneAccounts& accounts) {
  const std::size_t first = at(stage) * at(cost.ranks);
  return {cost, accounts, accounts.compute.data() + first, accounts.attention.data() + first};
}

}  // namespace

void LaneEngine::account(const ScheduleOp& op, int v, const MicroBatch& micro_batch,
                         const MicroBatchCost& cost, int stage, LaneAccounts& accounts) {
  if (op.kind == OpKind::B) return account_backward(is_half(op), v, micro_batch, cost, stage, accounts);
  const Accounting own = accounting_of(cost, stage, accounts);
  if (op.kind == OpKind::W) {
    for (const WalkPart& part : walks_->weights(v).runs)
      if (is_layer(part.part)) own.weights(index_of(part.part), part.layers);
    return;
  }
  const Picoseconds before = own.exposed();
  for (const WalkPart& part : walks_->forward(v).runs) {
    if (is_layer(part.part))
      own.forward(index_of(part.part), part.layers);
    else
      own.end(part.part == ModelPart::head ? cost.head_forward : cost.embed_forward);
  }
  if (op.kind == OpKind::R) accounts.recompute_exposed += own.exposed() - before;
}

// Layers that run side by side expose what is left of their exchanges together, not what each would alone.
// Follows pair_alone, which found that.
void LaneEngine::account_pair(const Pair& pair, LaneAccounts& accounts) {
  struct Sides {
    const Pair& pair;
    Picoseconds& exposed;
    void forward(const WalkPart&) const {}
    void backward(const WalkPart&) const {}
    void done(const WalkPart&) const {}
    void both(const WalkPart& f, const WalkPart& b) const {
      constexpr auto kExpert = static_cast<std::size_t>(Stream::ep);
      exposed -= pair.forward.exposed_forward[index_of(f.part)][kExpert] +
                 pair.backward.exposed_backward[index_of(b.part)][kExpert];
    }
  };
  Picoseconds& exposed = accounts.exposed[static_cast<std::size_t>(Stream::ep)];
  walk_pair(walks_->forward(pair.forward_stage), walks_->backward(pair.backward_stage), Sides{pair, exposed});
  exposed += std::accumulate(exposed_.begin(), exposed_.end(), Picoseconds{0}) /
             static_cast<Picoseconds>(exposed_.size());
}

void LaneEngine::account_backward(bool half, int v, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                                  int stage, LaneAccounts& accounts) {
  const Accounting own = accounting_of(cost, stage, accounts);
  const int recomputed = walks_->recomputed_layers(v, micro_batch);
  const Picoseconds before = own.exposed();
  for (const WalkPart& part : walks_->backward(v).runs) {
    const int full = is_layer(part.part) ? part.recomputed_of(recomputed) : 0;
    if (full == 0) continue;
    const std::size_t k = index_of(part.part);
    own.forward(k, full);
    zero_.assign(at(cost.ranks), 0);
    advance(cost.forward[k], full, zero_);
    accounts.recompute[at(stage)] += *std::max_element(zero_.begin(), zero_.end());
  }
  accounts.recompute_exposed += own.exposed() - before;
  for (const WalkPart& part : walks_->backward(v).runs) {
    if (!is_layer(part.part)) {
      own.end(part.part == ModelPart::head ? cost.head_backward : cost.embed_backward);
      continue;
    }
    const std::size_t k = index_of(part.part);
    own.backward(k, part.layers);
    if (half) own.weights(k, -part.layers);  // W makes them
    accounts.recompute[at(stage)] += part.layers * cost.recomputed[k];
  }
}

Picoseconds LaneEngine::account_again(const Run& run, const ScheduleOp& op, int stage, std::size_t position) {
  const std::vector<std::int32_t>* const again =
      run.arrivals == nullptr ? nullptr : run.arrivals->again_of(stage, position);
  if (again == nullptr) return 0;
  const MicroBatchCost& own = cost_of(run, op, stage, position);
  const int v = virtual_stage(op, stage);
  const int recomputed = walks_->recomputed_layers(v, run.micro_batches[at(op.micro_batch)]);
  LaneAccounts& accounts = run.accounts;
  const auto add = [&](const MicroBatchCost& cost, std::size_t kind, int layers) {
    const Accounting accounting = accounting_of(cost, stage, accounts);
    const Picoseconds before = accounting.exposed();
    accounting.forward(kind, layers);
    accounts.recompute_exposed += accounting.exposed() - before;
    zero_.assign(at(cost.ranks), 0);
    advance(cost.forward[kind], 1, zero_);
    return layers * *std::max_element(zero_.begin(), zero_.end());
  };
  Picoseconds sum = 0;
  for (const WalkPart& part : walks_->backward(v).parts) {
    if (!is_layer(part.part) || !is_moe(kind_of(part.part)) || at(part.first) >= again->size()) continue;
    const std::size_t kind = index_of(part.part);
    sum += add(run.costs[at((*again)[at(part.first)])], kind, 1);
    if (part.first < recomputed) sum += add(own, kind, -1);
  }
  accounts.recompute[at(stage)] += sum;
  return sum;
}

}  // namespace equipoise
