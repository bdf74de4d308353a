// The parts of a model on each virtual stage of a pipeline: its layers, the parts that ranks gather and
// reduce at once, and which of its layers are recomputed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// Splits `layers` over virtual stages, in model order. If they do not divide evenly, the stages in the middle
// get one more, because the first also embeds and the last also makes the logits.
std::vector<int> split_layers(int layers, int virtual_stages);

// Nanotron's division (build_model in models/base.py). Blocks are dealt in turn: embedding, layers, norm,
// head, cast of the logits, loss. A stage is full once the cost up to its last block exceeds its even share.
// Costs are those of models/llama.py for any model: 4 x hidden x query width + 3 x hidden x FFN per layer,
// vocabulary x hidden for the head. A large head leaves the last stages without a block.
struct BlockDivision {
  std::vector<int> layers;  // by virtual stage
  int filled = 0;           // number of stages with a block
};
BlockDivision divide_by_block_costs(const ModelShape& model, int virtual_stages);

// Layers of each virtual stage; no other code decides which stage has which layers. The layout's own numbers
// come first. Else the framework divides them, evenly or by block costs. If embedding and head count as
// layers, the split is even and the first and the last stage have one layer fewer, perhaps none. Layers of
// multi-token prediction go to the last stage.
std::vector<int> layers_of_stages(const ModelShape& model, const Layout& layout);

// The parts of a model that ranks gather and reduce at once. The head includes the last norm and what
// multi-token prediction has in addition to its layers. Layers are in the order of LayerKind.
enum class ModelPart : std::uint8_t {
  embedding,
  dense_layer,
  moe_layer,
  sliding_dense_layer,
  sliding_moe_layer,
  recurrent_dense_layer,
  recurrent_moe_layer,
  recurrent_alone_layer,
  parallel_dense_layer,
  head
};
inline constexpr std::size_t kModelParts = kLayerKinds + 2;
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
// as if the model had them in that order.
struct StageLayers {
  LayerCounts count{};
  [[nodiscard]] int total() const { return sum_of(count); }
};

// The number of the first layer of each virtual stage.
std::vector<int> first_layers(const ModelShape& model, const Layout& layout);

std::vector<StageLayers> stage_layers(const ModelShape& model, const Layout& layout, int from = 0);

// How many of each virtual stage's layers a backward goes through.
std::vector<int> backward_layers(const ModelShape& model, const Layout& layout);

// The parts of all virtual stages in backward order: head, layers from the last to number `from`, embedding.
std::vector<std::vector<ModelPart>> backward_parts(const ModelShape& model, const Layout& layout,
                                                   int from = 0);

// Parameters of a part, all TP and EP ranks together: those of its routed experts, and the others.
struct PartParameters {
  std::int64_t dense = 0;
  std::int64_t routed = 0;
};
using PartSizes = std::array<PartParameters, kModelParts>;

// Sizes by ModelPart including adapters; 0 for kinds of layers that the model lacks. Tied embeddings count
// once if one stage has both ends.
PartSizes part_sizes(const ModelShape& model, const Layout& layout);
// The parameters that a step trains: all of them unless some are frozen.
PartSizes trained_sizes(const ModelShape& model, const Layout& layout);

// Layers of a model of `layers` layers that the layout recomputes whole.
int checkpointed_layers(const Layout& layout, int layers);

// Which layers are recomputed when `k` of the model's are: the next one is always of the virtual stage with
// the smallest share of its layers recomputed, ties to the lowest (whose rank keeps the most micro-batches in
// flight). So k + 1 layers are the k layers and one more, and no stage keeps more activations than before. A
// search for the fewest layers that fit relies on this. A stage's first recomputed layer adds the layer at
// work, so that there, with one micro-batch in flight, memory can rise a little. A share computed from k
// alone (k x layers up to a stage, rounded) does not have this property.
class RecomputeOrder {
 public:
  RecomputeOrder() = default;
  // `layers` has those of each virtual stage, in model order.
  explicit RecomputeOrder(const std::vector<int>& layers);

  // Layers of a virtual stage among the first `checkpointed` of the order.
  [[nodiscard]] int of_stage(int virtual_stage, int checkpointed) const;
  [[nodiscard]] int virtual_stages() const { return static_cast<int>(begin_.size()) - 1; }

 private:
  std::vector<int> begin_;  // by virtual stage: its place in turn_, and the end
  std::vector<int> turn_;   // by layer: how many are recomputed before it, ascending within a stage
};

// Layers that the virtual stages of a model on a layout recompute in full. Those that no backward reaches
// (Training::frozen_layers) have nothing to recompute.
class RecomputedLayers {
 public:
  RecomputedLayers(const ModelShape& model, const Layout& layout);

  // `of_model` is how many of the model's layers a micro-batch recomputes (MicroBatch::recompute_layers), or
  // kStudyRecompute for the layout's number.
  [[nodiscard]] int of_stage(int virtual_stage, int of_model) const;
  [[nodiscard]] int of_stage(int virtual_stage, const MicroBatch& micro_batch) const;

  // The most layers that any pipeline stage recomputes, over its virtual stages, as plan files count.
  [[nodiscard]] int of_fullest_stage(int of_model) const;
  [[nodiscard]] int of_fullest_stage(const MicroBatch& micro_batch) const;
  // The reverse: the fewest layers of the model with which every stage recomputes `of_stage` of its layers,
  // or all that it has.
  [[nodiscard]] int of_model(int of_stage) const;
  [[nodiscard]] int layers() const { return layers_; }  // in the model
  [[nodiscard]] std::span<const int> layers_of_virtual_stages() const { return layers_of_virtual_stage_; }

 private:
  template <class What>  // of_model or a micro-batch
  [[nodiscard]] int of_pipeline_stage(int stage, const What& what) const;

  RecomputeOrder order_;
  int of_layout_;
  int layers_;
  VirtualStages stages_;
  std::vector<int> of_study_;         // by virtual stage: of a micro-batch that leaves it to the layout
  std::vector<int> through_;          // by virtual stage: layers that a backward goes through
  std::vector<int> layers_of_stage_;  // of those
  std::vector<int> layers_of_virtual_stage_;
};

}  // namespace equipoise
