// Which layers are recomputed when `k` of the model's are: the next one is always of the virtual stage with
// the smallest share of its layers recomputed, ties to the lowest (whose rank keeps the most micro-batches in
// flight). So k + 1 layers are the k layers and one more: no stage keeps more activations than before,
// which a search for the fewest layers that fit relies on (a stage's first recomputed layer adds the layer at
// work, so that there, with one micro-batch in flight, memory can rise a little). A share computed from k
// alone (k x layers up to a stage, rounded) does not have this property.
#pragma once

#include <vector>

#include "sim/workload/layout.h"

namespace equipoise {

class RecomputeOrder {
 public:
  RecomputeOrder() = default;
  // `layers`: of each virtual stage, in model order.
  explicit RecomputeOrder(const std::vector<int>& layers);

  // Layers of a virtual stage among the first `checkpointed` of the order.
  [[nodiscard]] int of_stage(int virtual_stage, int checkpointed) const;
  [[nodiscard]] int virtual_stages() const { return static_cast<int>(begin_.size()) - 1; }

 private:
  std::vector<int> begin_;  // of each virtual stage in turn_, and the end
  std::vector<int> turn_;   // of each layer: how many are recomputed before it; ascending within a stage
};

// Layers that the virtual stages of a model on a layout recompute in full.
class RecomputedLayers {
 public:
  RecomputedLayers(const ModelShape& model, const Layout& layout);

  // `of_model`: how many of the model's layers a micro-batch recomputes (MicroBatch::recompute_layers), or
  // kStudyRecompute, for as many as the layout says.
  [[nodiscard]] int of_stage(int virtual_stage, int of_model) const;

  // Of a pipeline stage with all its virtual stages, as plan files count: the most that any stage recomputes.
  [[nodiscard]] int of_fullest_stage(int of_model) const;
  // The other way round: the fewest layers of the model with which every stage recomputes `of_stage` of its
  // layers, or all it has.
  [[nodiscard]] int of_model(int of_stage) const;
  [[nodiscard]] int layers() const { return layers_; }  // of the model

 private:
  [[nodiscard]] int of_pipeline_stage(int stage, int of_model) const;

  RecomputeOrder order_;
  int of_layout_;
  int layers_;
  VirtualStages stages_;
  std::vector<int> layers_of_stage_;
};

}  // namespace equipoise
