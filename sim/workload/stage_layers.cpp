#include "sim/workload/stage_layers.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {

std::vector<int> split_layers(int layers, int virtual_stages) {
  const auto n = at(virtual_stages);
  std::vector<int> split(n, layers / virtual_stages);
  int extra = layers % virtual_stages;
  // The extra layers go to the middle stages first, then outwards.
  for (std::size_t step = 0; extra > 0; ++step) {
    const std::size_t offset = (step + 1) / 2;
    const std::size_t centre = (n - 1) / 2;
    const std::size_t stage = step % 2 == 1 ? centre + offset : centre - offset;
    if (stage >= n) continue;  // also true after an underflow on the left
    ++split[stage];
    --extra;
  }
  return split;
}

BlockDivision divide_by_block_costs(const ModelShape& model, int virtual_stages) {
  std::vector<std::int64_t> costs(at(model.layers) + 1,
                                  4 * model.query_width() * model.hidden + 3 * model.ffn * model.hidden);
  costs.front() = 0;  // the embedding
  costs.insert(costs.end(), {0, model.embedding_parameters(), 0, 0});
  const auto total = static_cast<double>(sum_of(costs));
  BlockDivision division{std::vector<int>(at(virtual_stages), 0)};
  std::int64_t so_far = 0;
  int stage = 0;
  for (std::size_t block = 0; block < costs.size(); ++block) {
    if (block >= 1 && block <= at(model.layers)) ++division.layers[at(stage)];
    division.filled = stage + 1;
    so_far += costs[block];
    if (static_cast<double>(so_far) * virtual_stages > total * (stage + 1)) ++stage;
  }
  return division;
}

std::vector<int> layers_of_stages(const ModelShape& model, const Layout& layout) {
  std::vector<int> split = layout.stage_layers;
  if (layout.divides_by_block_costs()) {
    split = divide_by_block_costs(model, layout.stage_order().blocks).layers;
  } else if (split.empty()) {
    const int counted = layout.count_embedding_and_head ? 1 : 0;  // extra layers at each end
    split = split_layers(model.layers + 2 * counted, layout.stage_order().blocks);
    split.front() -= counted;
    split.back() -= counted;
  }
  split.back() += model.mtp_layers;
  if (layout.bidirectional) split.insert(split.end(), split.rbegin(), split.rend());
  return split;
}

std::vector<int> first_layers(const ModelShape& model, const Layout& layout) {
  const std::vector<int> layers = layers_of_stages(model, layout);
  const VirtualStages order = layout.stage_order();
  std::vector<int> first;
  int layer = 0;
  for (int v = 0; v < order.count(); ++v) {
    first.push_back(v < order.blocks ? layer : first[at(order.block_of(v))]);
    layer += layers[at(v)];
  }
  return first;
}

std::vector<StageLayers> stage_layers(const ModelShape& model, const Layout& layout, int from) {
  std::vector<StageLayers> stages;
  const std::vector<int> layers = layers_of_stages(model, layout);
  const std::vector<int> first = first_layers(model, layout);
  for (std::size_t v = 0; v < layers.size(); ++v)
    stages.push_back({model.layer_counts(std::max(first[v], from), first[v] + layers[v])});
  return stages;
}

std::vector<int> backward_layers(const ModelShape& model, const Layout& layout) {
  return each_of(stage_layers(model, layout, model.training.frozen_layers), &StageLayers::total);
}

std::vector<std::vector<ModelPart>> backward_parts(const ModelShape& model, const Layout& layout, int from) {
  const std::vector<StageLayers> layers = stage_layers(model, layout, from);
  const VirtualStages order = layout.stage_order();
  std::vector<std::vector<ModelPart>> parts(layers.size());
  for (std::size_t v = 0; v < layers.size(); ++v) {
    if (order.is_last(static_cast<int>(v))) parts[v].push_back(ModelPart::head);
    for (int k = kLayerKinds; k-- > 0;)
      parts[v].insert(parts[v].end(), at(layers[v].count[at(k)]), part_of(static_cast<LayerKind>(k)));
    if (order.is_first(static_cast<int>(v))) parts[v].push_back(ModelPart::embedding);
  }
  return parts;
}

static bool has_both_ends(const Layout& layout) {
  return layout.pipeline == 1 || layout.bidirectional;
}

// Whether ranks without the first stage need the embedding in addition to the logits' weights, to look up
// tokens for multi-token prediction.
static bool copies_embedding(const ModelShape& model, const Layout& layout) {
  return model.mtp_layers > 0 && !model.tied_embeddings && !has_both_ends(layout);
}

PartSizes part_sizes(const ModelShape& model, const Layout& layout) {
  PartSizes sizes{};
  for (int layer = 0; layer < model.layers; ++layer) {  // because all layers of a kind have the same number
    const std::int64_t routed = model.routed_parameters(layer);
    sizes[at(part_of(model.kind(layer)))] = {
        model.layer_parameters(layer) - routed + model.adapter_parameters(layer, false),
        routed + model.adapter_parameters(layer, true)};
  }
  sizes[at(ModelPart::embedding)].dense = model.embedding_parameters();
  sizes[at(ModelPart::head)].dense =
      (model.tied_embeddings && has_both_ends(layout) ? 0 : model.embedding_parameters()) +
      model.head().norms + model.head().projections +
      (copies_embedding(model, layout) ? model.embedding_parameters() : 0);
  return sizes;
}

PartSizes trained_sizes(const ModelShape& model, const Layout& layout) {
  PartSizes sizes{};
  const Training& training = model.training;
  for (int layer = 0; layer < model.layers; ++layer)
    sizes[at(part_of(model.kind(layer)))] = {model.trained_parameters(layer, false),
                                             model.trained_parameters(layer, true)};
  std::int64_t& head = sizes[at(ModelPart::head)].dense;
  if (training.trains(WeightKind::embedding)) {
    sizes[at(ModelPart::embedding)].dense = model.embedding_parameters();
    if (copies_embedding(model, layout)) head += model.embedding_parameters();
  }
  if (training.trains(WeightKind::head))
    head += model.head().projections +
            (model.tied_embeddings && has_both_ends(layout) ? 0 : model.embedding_parameters());
  if (training.trains(WeightKind::norms)) head += model.head().norms;
  return sizes;
}

int checkpointed_layers(const Layout& layout, int layers) {
  if (layout.recompute == Recompute::full) return layers;
  return layout.recompute == Recompute::layers ? layout.recompute_layers : 0;
}

RecomputeOrder::RecomputeOrder(const std::vector<int>& layers) {
  begin_.push_back(0);
  for (const int count : layers) begin_.push_back(begin_.back() + count);
  struct Layer {
    std::int64_t before;  // layers of its stage that come first
    std::int64_t layers;  // number in its stage
    int number;
  };
  std::vector<Layer> order;
  for (std::size_t v = 0; v < layers.size(); ++v)
    for (int i = 0; i < layers[v]; ++i) order.push_back({i, layers[v], begin_[v] + i});
  std::stable_sort(order.begin(), order.end(), [](const Layer& a, const Layer& b) {
    return a.before * b.layers < b.before * a.layers;  // compares shares of their stages
  });
  turn_.resize(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) turn_[at(order[k].number)] = static_cast<int>(k);
}

int RecomputeOrder::of_stage(int virtual_stage, int checkpointed) const {
  if (checkpointed <= 0) return 0;
  const auto v = at(virtual_stage);
  const auto first = turn_.begin() + begin_[v], last = turn_.begin() + begin_[v + 1];
  return static_cast<int>(std::lower_bound(first, last, checkpointed) - first);
}

RecomputedLayers::RecomputedLayers(const ModelShape& model, const Layout& layout)
    : of_layout_(checkpointed_layers(layout, model.all_layers())),
      layers_(model.all_layers()),
      stages_(layout.stage_order()),
      layers_of_stage_(at(layout.pipeline), 0) {
  const std::vector<int> layers = layers_of_stages(model, layout);
  order_ = RecomputeOrder({layers.begin(), layers.begin() + stages_.blocks});
  through_ = backward_layers(model, layout);
  for (std::size_t v = 0; v < layers.size(); ++v)
    layers_of_stage_[v % layers_of_stage_.size()] += through_[v];
  layers_of_virtual_stage_ = layers;
  for (int v = 0; v < stages_.count(); ++v) of_study_.push_back(of_stage(v, of_layout_));
}

int RecomputedLayers::of_stage(int virtual_stage, int of_model) const {
  if (of_model == kStudyRecompute) return of_study_[at(virtual_stage)];
  const int first = order_.of_stage(stages_.block_of(virtual_stage), of_model);
  return std::max(0, first - layers_of_virtual_stage_[at(virtual_stage)] + through_[at(virtual_stage)]);
}

int RecomputedLayers::of_stage(int virtual_stage, const MicroBatch& micro_batch) const {
  if (micro_batch.recompute_by_stage.empty()) return of_stage(virtual_stage, micro_batch.recompute_layers);
  return std::min<int>(micro_batch.recompute_by_stage[at(virtual_stage)], through_[at(virtual_stage)]);
}

template <class What>
int RecomputedLayers::of_pipeline_stage(int stage, const What& what) const {
  int sum = 0;
  for (int v = stage; v < stages_.count(); v += stages_.pipeline) sum += of_stage(v, what);
  return sum;
}

int RecomputedLayers::of_fullest_stage(int of_model) const {
  int most = 0;
  for (int s = 0; s < stages_.pipeline; ++s) most = std::max(most, of_pipeline_stage(s, of_model));
  return most;
}

int RecomputedLayers::of_fullest_stage(const MicroBatch& micro_batch) const {
  int most = 0;
  for (int s = 0; s < stages_.pipeline; ++s) most = std::max(most, of_pipeline_stage(s, micro_batch));
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
