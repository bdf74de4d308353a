#include "sim/workload/model_parts.h"

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}
std::size_t at(ModelPart part) {
  return static_cast<std::size_t>(part);
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

std::vector<std::vector<ModelPart>> backward_parts(const ModelShape& model, const Layout& layout) {
  const std::vector<StageLayers> layers = stage_layers(model, layout);
  std::vector<std::vector<ModelPart>> parts(layers.size());
  for (std::size_t v = 0; v < layers.size(); ++v) {
    if (v + 1 == layers.size()) parts[v].push_back(ModelPart::head);
    for (int k = kLayerKinds; k-- > 0;)
      parts[v].insert(parts[v].end(), at(layers[v].count[at(k)]), part_of(static_cast<LayerKind>(k)));
    if (v == 0) parts[v].push_back(ModelPart::embedding);
  }
  return parts;
}

PartSizes part_sizes(const ModelShape& model, const Layout& layout) {
  PartSizes sizes{};
  for (int layer = 0; layer < model.layers; ++layer) {  // layers of a kind have equally many
    const std::int64_t routed = model.routed_parameters(layer);
    sizes[at(part_of(model.kind(layer)))] = {model.layer_parameters(layer) - routed, routed};
  }
  const bool shares_embedding = model.tied_embeddings && layout.pipeline == 1;
  sizes[at(ModelPart::embedding)].dense = model.embedding_parameters();
  sizes[at(ModelPart::head)].dense = (shares_embedding ? 0 : model.embedding_parameters()) + model.hidden;
  return sizes;
}

}  // namespace equipoise
