// The time of one op of a virtual stage: its layers, and the model's ends on the first and last stage.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "sim/engine/stage/lane_engine.h"

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

void add(std::span<Picoseconds> clock, const std::vector<Picoseconds>& durations) {
  for (std::size_t r = 0; r < clock.size(); ++r) clock[r] += durations[r];
}

}  // namespace

std::vector<StageLayers> stage_layers(const ModelShape& model, const Layout& layout) {
  std::vector<StageLayers> stages;
  int layer = 0;
  for (const int count : layers_of_stages(model, layout)) {
    stages.push_back({model.layer_counts(layer, layer + count)});
    layer += count;
  }
  return stages;
}

int LaneEngine::recomputed_layers(int v, const MicroBatch& micro_batch) const {
  const int of_model =
      micro_batch.recompute_layers != kStudyRecompute ? micro_batch.recompute_layers : checkpointed_;
  return recompute_order_.of_stage(v, of_model);
}

void LaneEngine::forward(int v, const MicroBatchCost& cost, std::span<Picoseconds> clock) {
  if (v == 0) add(clock, cost.embed_forward.total);
  for (std::size_t kind = 0; kind < kLayerKinds; ++kind)
    if (layers_[at(v)].count[kind] > 0) advance(cost.forward[kind], layers_[at(v)].count[kind], clock);
  if (v == last_virtual()) add(clock, cost.head_forward.total);
}

// Backward walks the layers from the last to the first; the recomputed ones are the stage's first.
void LaneEngine::backward(int v, bool split, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                          std::span<Picoseconds> clock, std::vector<Picoseconds>* layer_ends) {
  const auto note = [&] {
    if (layer_ends != nullptr) layer_ends->push_back(*std::max_element(clock.begin(), clock.end()));
  };
  if (v == last_virtual()) {
    add(clock, cost.head_backward.total);
    note();
  }
  int recomputed = recomputed_layers(v, micro_batch);
  const StageLayers& layers = layers_[at(v)];
  std::array<int, kLayerKinds> full{};
  for (std::size_t kind = 0; kind < kLayerKinds; ++kind) {
    full[kind] = std::min(recomputed, layers.count[kind]);
    recomputed -= full[kind];
  }
  for (std::size_t kind = kLayerKinds; kind-- > 0;) {
    const int plain = layers.count[kind] - full[kind];
    const LayerTimeline& gradient = split ? cost.input_gradient[kind] : cost.backward[kind];
    if (layer_ends == nullptr && !split) {
      if (plain > 0) advance(gradient, plain, clock);
      if (full[kind] > 0) advance(cost.full[kind], full[kind], clock);
      continue;
    }
    for (int i = 0; i < plain; ++i) {
      advance(gradient, 1, clock);
      note();
    }
    for (int i = 0; i < full[kind]; ++i) {
      if (split) {
        advance(cost.forward[kind], 1, clock);
        advance(cost.input_gradient[kind], 1, clock);
      } else {
        advance(cost.full[kind], 1, clock);
      }
      note();
    }
  }
  if (v == 0) {
    add(clock, cost.embed_backward.total);
    note();
  }
}

void LaneEngine::apply(OpKind kind, int v, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                       std::span<Picoseconds> clock, std::vector<Picoseconds>* layer_ends) {
  switch (kind) {
    case OpKind::F:
    case OpKind::D:
    case OpKind::R:
      return forward(v, cost, clock);
    case OpKind::B:
      return backward(v, split_backward_, micro_batch, cost, clock, layer_ends);
    case OpKind::W:
      for (std::size_t k = kLayerKinds; k-- > 0;)
        for (int i = 0; i < layers_[at(v)].count[k]; ++i) {
          add(clock, cost.weight_gradient[k]);
          if (layer_ends != nullptr) layer_ends->push_back(*std::max_element(clock.begin(), clock.end()));
        }
      return release_ends(v, layer_ends);
  }
  std::abort();
}

void LaneEngine::release_ends(int v, std::vector<Picoseconds>* layer_ends) const {
  if (layer_ends == nullptr || layer_ends->empty()) return;
  const Picoseconds end = layer_ends->back();
  if (v == last_virtual()) layer_ends->insert(layer_ends->begin(), end);
  if (v == 0) layer_ends->push_back(end);
}

Picoseconds LaneEngine::alone(OpKind kind, int v, const MicroBatch& micro_batch, const MicroBatchCost& cost) {
  zero_.assign(at(cost.ranks), 0);
  apply(kind, v, micro_batch, cost, zero_, nullptr);
  return *std::max_element(zero_.begin(), zero_.end());
}

void LaneEngine::account(OpKind kind, int v, const MicroBatch& micro_batch, const MicroBatchCost& cost,
                         int stage, LaneAccounts& accounts) {
  const StageLayers& layers = layers_[at(v)];
  const auto c = at(cost.ranks);
  Picoseconds* const compute = accounts.compute.data() + at(stage) * c;
  Picoseconds* const attention = accounts.attention.data() + at(stage) * c;
  const auto count_end = [&](bool has, const EndCost& end) {
    for (std::size_t r = 0; r < c && has; ++r) compute[r] += end.compute[r];
    for (std::size_t s = 0; s < kStreams && has; ++s) accounts.exposed[s] += end.exposed[s];
  };
  const auto count = [&](const auto& per_layer, const auto& attention_by_mask, const auto& exposed,
                         std::size_t k, int times) {
    if (times == 0) return;
    const auto& attention_of = attention_by_mask[mask_of(static_cast<LayerKind>(k))];
    for (std::size_t r = 0; r < c; ++r) compute[r] += times * per_layer[k][r];
    for (std::size_t r = 0; r < c; ++r) attention[r] += times * attention_of[r];
    for (std::size_t s = 0; s < kStreams; ++s) accounts.exposed[s] += times * exposed[k][s];
  };
  const auto exposed_so_far = [&accounts] {
    return std::accumulate(accounts.exposed.begin(), accounts.exposed.end(), Picoseconds{0});
  };
  const Picoseconds before = exposed_so_far();
  if (kind == OpKind::W) {
    for (std::size_t k = 0; k < kLayerKinds; ++k)
      for (std::size_t r = 0; r < c && layers.count[k] > 0; ++r)
        compute[r] += layers.count[k] * cost.weight_gradient[k][r];
    return;
  }
  if (kind != OpKind::B) {
    for (std::size_t k = 0; k < kLayerKinds; ++k)
      count(cost.compute_forward, cost.attention_forward, cost.exposed_forward, k, layers.count[k]);
    count_end(v == 0, cost.embed_forward);
    count_end(v == last_virtual(), cost.head_forward);
    if (kind == OpKind::R) accounts.recompute_exposed += exposed_so_far() - before;
    return;
  }
  int recomputed = recomputed_layers(v, micro_batch);
  std::array<int, kLayerKinds> full{};
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    full[k] = std::min(recomputed, layers.count[k]);
    recomputed -= full[k];
    count(cost.compute_forward, cost.attention_forward, cost.exposed_forward, k, full[k]);
    if (full[k] == 0) continue;
    zero_.assign(c, 0);
    advance(cost.forward[k], full[k], zero_);
    accounts.recompute[at(stage)] += *std::max_element(zero_.begin(), zero_.end());
  }
  accounts.recompute_exposed += exposed_so_far() - before;
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    count(cost.compute_backward, cost.attention_backward, cost.exposed_backward, k, layers.count[k]);
    if (split_backward_)
      for (std::size_t r = 0; r < c && layers.count[k] > 0; ++r)
        compute[r] -= layers.count[k] * cost.weight_gradient[k][r];
    if (layers.count[k] > 0) accounts.recompute[at(stage)] += layers.count[k] * cost.recomputed[k];
  }
  count_end(v == 0, cost.embed_backward);
  count_end(v == last_virtual(), cost.head_backward);
}

}  // namespace equipoise
