// Which layers are recomputed when `k` of the model's are: the next one is always of the virtual stage with
// the smallest share of its layers recomputed, ties to the lowest (whose rank keeps the most micro-batches in
// flight). So k + 1 layers are the k layers and one more: no stage keeps more activations than before,
// which a search for the fewest layers that fit relies on (a stage's first recomputed layer adds the layer at
// work, so that there, with one micro-batch in flight, memory can rise a little). A share computed from k
// alone (k x layers up to a stage, rounded) does not have this property.
#pragma once

#include <vector>

namespace equipoise {

class RecomputeOrder {
 public:
  RecomputeOrder() = default;
  // `layers`: of each virtual stage, in model order.
  explicit RecomputeOrder(const std::vector<int>& layers);

  // Layers of a virtual stage among the first `checkpointed` of the order.
  [[nodiscard]] int of_stage(int virtual_stage, int checkpointed) const;

 private:
  std::vector<int> begin_;  // of each virtual stage in turn_, and the end
  std::vector<int> turn_;   // of each layer: how many are recomputed before it; ascending within a stage
};

}  // namespace equipoise
