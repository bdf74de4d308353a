#include "sim/workload/recompute_order.h"

#include <algorithm>
#include <cstdint>

#include "policies/base/index.h"
#include "policies/plan.h"

namespace equipoise {

RecomputeOrder::RecomputeOrder(const std::vector<int>& layers) {
  begin_.push_back(0);
  for (const int count : layers) begin_.push_back(begin_.back() + count);
  struct Layer {
    std::int64_t before;  // layers of its stage that go first
    std::int64_t layers;  // of its stage
    int at;
  };
  std::vector<Layer> order;
  for (std::size_t v = 0; v < layers.size(); ++v)
    for (int i = 0; i < layers[v]; ++i) order.push_back({i, layers[v], begin_[v] + i});
  std::stable_sort(order.begin(), order.end(), [](const Layer& a, const Layer& b) {
    return a.before * b.layers < b.before * a.layers;  // shares of their stages
  });
  turn_.resize(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) turn_[at(order[k].at)] = static_cast<int>(k);
}

int RecomputeOrder::of_stage(int virtual_stage, int checkpointed) const {
  if (checkpointed <= 0) return 0;
  const auto v = static_cast<std::size_t>(virtual_stage);
  const auto first = turn_.begin() + begin_[v], last = turn_.begin() + begin_[v + 1];
  return static_cast<int>(std::lower_bound(first, last, checkpointed) - first);
}

RecomputedLayers::RecomputedLayers(const ModelShape& model, const Layout& layout)
    : of_layout_(checkpointed_layers(layout, model.layers)),
      layers_(model.layers),
      stages_(layout.stage_order()),
      layers_of_stage_(static_cast<std::size_t>(layout.pipeline), 0) {
  const std::vector<int> layers = layers_of_stages(model, layout);
  order_ = RecomputeOrder({layers.begin(), layers.begin() + stages_.blocks});
  for (std::size_t v = 0; v < layers.size(); ++v) layers_of_stage_[v % layers_of_stage_.size()] += layers[v];
}

int RecomputedLayers::of_stage(int virtual_stage, int of_model) const {
  return order_.of_stage(stages_.block_of(virtual_stage),
                         of_model != kStudyRecompute ? of_model : of_layout_);
}

int RecomputedLayers::of_pipeline_stage(int stage, int of_model) const {
  int sum = 0;
  for (int v = stage; v < stages_.count(); v += stages_.pipeline) sum += of_stage(v, of_model);
  return sum;
}

int RecomputedLayers::of_fullest_stage(int of_model) const {
  int most = 0;
  for (int s = 0; s < stages_.pipeline; ++s) most = std::max(most, of_pipeline_stage(s, of_model));
  return most;
}

int RecomputedLayers::of_model(int of_stage) const {
  int least = 0, most = layers_;
  const auto enough = [&](int layers) {
    for (int s = 0; s < stages_.pipeline; ++s)
      if (of_pipeline_stage(s, layers) < std::min(of_stage, layers_of_stage_[at(s)])) return false;
    return true;
  };
  while (least < most) {
    const int middle = least + (most - least) / 2;
    if (enough(middle))
      most = middle;
    else
      least = middle + 1;
  }
  return least;
}

}  // namespace equipoise
