// What one op of the schedule runs on a virtual stage, part by part: the one list that every resolution
// follows.
//
// A forward runs the embedding on the first virtual stage, the stage's layers, and the head on the last; a
// backward goes the other way. Its recomputed layers are the stage's first. Where backwards are split, B
// makes the input gradients of all parts and the weight gradients of the ends; W makes the layers' weight
// gradients, and the ends' gradients leave with them. A backward has no layers that none goes through
// (Training::frozen_layers): neither their work nor their gathers, and they are not counted among the stage's
// first.
//
// ZeRO-3 (FSDP): the parameters of every part are gathered before its forward and its backward (the
// embedding's backward needs none), those of the next part while this one runs, and the next begins when
// they are there. Where gradients are reduced with every micro-batch, a part's are as soon as they
// are there.
//
// A pair (ScheduleOp::with_next) runs its forward and its backward side by side. Layers with experts go in
// twos, one of each: they hide each other's exchanges. Everything else runs alone: what comes before the next
// layer with experts, first of the forward, then of the backward.
//
// Example, ZeRO-3, embedding E, layers L, head H, forward: gather E, wait; gather L, run E, wait; gather L,
// run L, wait; gather H, run L, wait; run H.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

constexpr std::size_t index_of(ModelPart layer) {
  return at(kind_of(layer));
}

// One part of the model, or equal layers in a row.
struct OrderedPart {
  ModelPart part{};
  int layers = 1;
  int first = 0;                     // the lowest layer, by its number on the virtual stage in its pass
  int bucket = 0;                    // for backward and W: place of its gradients in backward order
  std::optional<ModelPart> gathers;  // the part whose parameters are gathered meanwhile
  bool waits = false;                // whether the next part waits for the collectives under way

  // How many of the layers are among the stage's first `recomputed`.
  [[nodiscard]] int recomputed_of(int recomputed) const { return std::clamp(recomputed - first, 0, layers); }
};

struct PartOrder {
  std::optional<ModelPart> gathered_first;  // gathered before anything runs
  std::vector<OrderedPart> parts;           // one layer each
  std::vector<OrderedPart> runs;            // the same with equal layers together, without ZeRO-3's gathers
};

// The orders of all virtual stages of a model on a layout.
class PartOrders {
 public:
  PartOrders(const ModelShape& model, const Layout& layout);

  [[nodiscard]] const PartOrder& forward(int virtual_stage) const { return forward_[at(virtual_stage)]; }
  [[nodiscard]] const PartOrder& backward(int virtual_stage) const { return backward_[at(virtual_stage)]; }
  [[nodiscard]] const PartOrder& weights(int virtual_stage) const { return weights_[at(virtual_stage)]; }
  // The buckets that a virtual stage's gradients fill: its parts in backward order.
  [[nodiscard]] const std::vector<ModelPart>& buckets(int virtual_stage) const {
    return buckets_[at(virtual_stage)];
  }
  [[nodiscard]] int virtual_stages() const { return static_cast<int>(buckets_.size()); }
  // Virtual stages with equal parts, whose ops take equally long: one of them, and how many there are.
  struct Kind {
    int virtual_stage = 0, count = 0;
  };
  [[nodiscard]] const std::vector<Kind>& kinds() const { return kinds_; }
  [[nodiscard]] std::size_t kind_of_stage(int virtual_stage) const {
    return kind_of_stage_[at(virtual_stage)];
  }
  [[nodiscard]] int recomputed_layers(int virtual_stage, const MicroBatch& micro_batch) const {
    return recomputed_.of_stage(virtual_stage, micro_batch);
  }

 private:
  std::vector<std::vector<ModelPart>> buckets_;
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_stage_;
  std::vector<PartOrder> forward_, backward_, weights_;
  RecomputedLayers recomputed_;
};

// Whether a rank gathers parameters and reduces gradients with every micro-batch.
inline bool gathers_each_micro_batch(const Layout& layout) {
  return layout.zero == 3 && layout.data * layout.context > 1;
}
inline bool reduces_each_micro_batch(const Layout& layout) {
  return layout.reduces_each_micro_batch() && layout.data * layout.context > 1;
}

// Tells `on` what happens, in order: gather(ModelPart), wait(), work(const OrderedPart&), and done(const
// OrderedPart&) when a part is through, which in a backward and a W is when its gradients are there. Layer by
// layer, or equal layers at once where nothing happens between them.
template <class On>
void each_part(const PartOrder& order, bool layer_by_layer, On&& on) {
  if (!layer_by_layer) {
    for (const OrderedPart& part : order.runs) {
      on.work(part);
      on.done(part);
    }
    return;
  }
  if (order.gathered_first) {
    on.gather(*order.gathered_first);
    on.wait();
  }
  for (const OrderedPart& part : order.parts) {
    if (part.gathers) on.gather(*part.gathers);
    on.work(part);
    if (part.waits) on.wait();
    on.done(part);
  }
}

// Tells `on` what happens in a pair, in order: forward(const OrderedPart&), backward(const OrderedPart&), and
// both(forward, backward) of two layers side by side; done(const OrderedPart&) when a part of the backward is
// through.
template <class On>
void each_part_of_pair(const PartOrder& forward, const PartOrder& backward, On&& on) {
  const auto exchanges = [](const OrderedPart& part) {
    return is_layer(part.part) && is_moe(kind_of(part.part));
  };
  auto f = forward.parts.begin();
  auto b = backward.parts.begin();
  const auto run_backward = [&] {
    on.backward(*b);
    on.done(*b++);
  };
  for (;;) {
    while (f != forward.parts.end() && !exchanges(*f)) on.forward(*f++);
    while (b != backward.parts.end() && !exchanges(*b)) run_backward();
    if (f == forward.parts.end() || b == backward.parts.end()) break;
    on.both(*f++, *b);
    on.done(*b++);
  }
  while (f != forward.parts.end()) on.forward(*f++);
  while (b != backward.parts.end()) run_backward();
}

}  // namespace equipoise
