#include "sim/workload/model_parts.h"

#include "policies/base/index.h"

namespace equipoise {
namespace {

std::size_t at(ModelPart part) {
  return static_cast<std::size_t>(part);
}

}  // namespace

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

std::vector<StageLayers> stage_layers(const ModelShape& model, const Layout& layout) {
  std::vector<StageLayers> stages;
  const std::vector<int> layers = layers_of_stages(model, layout);
  const std::vector<int> first = first_layers(model, layout);
  for (std::size_t v = 0; v < layers.size(); ++v)
    stages.push_back({model.layer_counts(first[v], first[v] + layers[v])});
  return stages;
}

std::vector<std::vector<ModelPart>> backward_parts(const ModelShape& model, const Layout& layout) {
  const std::vector<StageLayers> layers = stage_layers(model, layout);
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

PartSizes part_sizes(const ModelShape& model, const Layout& layout) {
  PartSizes sizes{};
  for (int layer = 0; layer < model.layers; ++layer) {  // layers of a kind have equally many
    const std::int64_t routed = model.routed_parameters(layer);
    sizes[at(part_of(model.kind(layer)))] = {model.layer_parameters(layer) - routed, routed};
  }
  // On ranks that have both ends.
  const bool shares_embedding = model.tied_embeddings && (layout.pipeline == 1 || layout.bidirectional);
  sizes[at(ModelPart::embedding)].dense = model.embedding_parameters();
  sizes[at(ModelPart::head)].dense = (shares_embedding ? 0 : model.embedding_parameters()) + model.hidden;
  return sizes;
}

}  // namespace equipoise
