#include "sim/step/op_time.h"

#include <algorithm>
#include <cstdlib>

namespace equipoise {

namespace {

void add(std::span<Picoseconds> clock, const std::vector<Picoseconds>& durations) {
  for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += durations[r];
}

// The parts of an op on a lane of its own, which makes no collectives with other lanes.
struct LaneParts {
  const MicroBatchCost& cost;
  std::span<Picoseconds> clock;
  std::vector<Picoseconds>* filled = nullptr;

  void gather(ModelPart) const {}
  void wait() const {}
  void done(const OrderedPart& part) const {
    if (filled != nullptr) (*filled)[at(part.bucket)] = *std::max_element(clock.begin(), clock.end());
  }
};

struct Forward : LaneParts {
  void work(const OrderedPart& part) const {
    if (is_layer(part.part)) return advance(cost.forward[index_of(part.part)], part.layers, clock);
    add(clock, (part.part == ModelPart::head ? cost.head_forward : cost.embed_forward).total);
  }
};
// The layers go from the last to the first; the recomputed ones are the stage's first.
struct Backward : LaneParts {
  int recomputed;
  void work(const OrderedPart& part) const {
    if (!is_layer(part.part))
      return add(clock, (part.part == ModelPart::head ? cost.head_backward : cost.embed_backward).total);
    const std::size_t k = index_of(part.part);
    const int full = part.recomputed_of(recomputed);
    advance(cost.backward[k], part.layers - full, clock);
    advance(cost.full[k], full, clock);
  }
};

// The half of a split backward that makes input gradients, layer by layer.
struct InputGradients : LaneParts {
  int recomputed;
  void work(const OrderedPart& part) const {
    if (!is_layer(part.part))
      return add(clock, (part.part == ModelPart::head ? cost.head_backward : cost.embed_backward).total);
    const std::size_t k = index_of(part.part);
    advance(cost.again[k], part.recomputed_of(recomputed), clock);
    advance(cost.input_gradient[k], part.layers, clock);
  }
};

struct Weights : LaneParts {
  void work(const OrderedPart& part) const {
    if (!is_layer(part.part)) return;
    const std::vector<Picoseconds>& layer = cost.weight_gradient[index_of(part.part)];
    for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += part.layers * layer[r];
  }
};

struct BothWays {
  Forward forward_order;
  Backward backward_order;
  std::span<Picoseconds> exposed;  // by rank: exposed exchanges of layers that run side by side

  void forward(const OrderedPart& part) const { forward_order.work(part); }
  void backward(const OrderedPart& part) const { backward_order.work(part); }
  void done(const OrderedPart& part) const { backward_order.done(part); }
  void both(const OrderedPart& f, const OrderedPart& b) const {
    const MicroBatchCost& forward_cost = forward_order.cost;
    const MicroBatchCost& backward_cost = backward_order.cost;
    const std::size_t k = index_of(b.part);
    advance(backward_cost.again[k], b.recomputed_of(backward_order.recomputed), backward_order.clock);
    advance_pair(forward_cost.forward[index_of(f.part)], backward_cost.backward[k], backward_order.clock,
                 exposed);
  }
};

}  // namespace

void OpTimer::advance(const StageWork& work, const MicroBatchCost& cost, std::span<Picoseconds> clock,
                      std::vector<Picoseconds>* filled) const {
  const int v = work.virtual_stage;
  const bool each = filled != nullptr;
  if (each) filled->resize(orders_->buckets(v).size());
  switch (work.kind) {
    case OpKind::F:
    case OpKind::D:
    case OpKind::R:
      return each_part(orders_->forward(v), false, Forward{{cost, clock}});
    case OpKind::B:
      if (work.half)
        return each_part(orders_->backward(v), true, InputGradients{{cost, clock}, work.recomputed});
      return each_part(orders_->backward(v), each, Backward{{cost, clock, filled}, work.recomputed});
    case OpKind::W:
      return each_part(orders_->weights(v), each, Weights{{cost, clock, filled}});
  }
  std::abort();
}

void OpTimer::advance(const PairWork& pair, std::span<Picoseconds> clock, std::vector<Picoseconds>* filled) {
  if (filled != nullptr) filled->resize(orders_->buckets(pair.backward_stage).size());
  exposed_.assign(clock.size(), 0);
  each_part_of_pair(orders_->forward(pair.forward_stage), orders_->backward(pair.backward_stage),
                    BothWays{Forward{{pair.forward, clock}},
                             Backward{{pair.backward, clock, filled}, pair.recomputed}, exposed_});
}

Picoseconds OpTimer::alone(const StageWork& work, const MicroBatchCost& cost) {
  zero_.assign(at(cost.ranks), 0);
  advance(work, cost, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

Picoseconds OpTimer::alone(const PairWork& pair) {
  zero_.assign(at(pair.forward.ranks), 0);
  advance(pair, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

Picoseconds OpTimer::alone(const LayerTimeline& layer, int layers) {
  zero_.assign(at(layer.ranks), 0);
  equipoise::advance(layer, layers, zero_);
  return *std::max_element(zero_.begin(), zero_.end());
}

}  // namespace equipoise
