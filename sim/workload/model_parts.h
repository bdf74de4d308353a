// The parts of a model that ranks compute, gather and reduce at once, and which virtual stage has which.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// The head comes with the last norm. Layers stand in the order of LayerKind.
enum class ModelPart : std::uint8_t {
  embedding,
  dense_layer,
  moe_layer,
  sliding_dense_layer,
  sliding_moe_layer,
  head
};
inline constexpr std::size_t kModelParts = 6;
constexpr bool is_layer(ModelPart part) {
  return part != ModelPart::embedding && part != ModelPart::head;
}
constexpr LayerKind kind_of(ModelPart layer) {
  return static_cast<LayerKind>(static_cast<int>(layer) - static_cast<int>(ModelPart::dense_layer));
}
constexpr ModelPart part_of(LayerKind kind) {
  return static_cast<ModelPart>(static_cast<int>(kind) + static_cast<int>(ModelPart::dense_layer));
}

// Layers of one virtual stage by kind. The layers of a kind run one after another, in the order of LayerKind,
// as if the model had them so.
struct StageLayers {
  LayerCounts count{};
  [[nodiscard]] int total() const { return std::accumulate(count.begin(), count.end(), 0); }
};

// Of the model's layers, the first one of each virtual stage.
std::vector<int> first_layers(const ModelShape& model, const Layout& layout);

// The layers of all virtual stages of a model on a layout.
std::vector<StageLayers> stage_layers(const ModelShape& model, const Layout& layout);

// The parts of all virtual stages in backward order: head, layers from the last to the first, embedding.
std::vector<std::vector<ModelPart>> backward_parts(const ModelShape& model, const Layout& layout);

// Parameters of a part, all TP and EP ranks together: those of its routed experts, and the others.
struct PartParameters {
  std::int64_t dense = 0;
  std::int64_t routed = 0;
};
using PartSizes = std::array<PartParameters, kModelParts>;

// By ModelPart; 0 for kinds of layers that the model does not have. Tied embeddings count once where one
// stage has both ends.
PartSizes part_sizes(const ModelShape& model, const Layout& layout);

}  // namespace equipoise
