// What a layer's forward keeps for its backward.
#pragma once

#include "sim/framework/framework_options.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// Tensors that a layer's backward needs, in bytes per token on one TP rank: the two norm inputs and outputs
// (sequence-parallel), Q, K, V, the attention output with its softmax statistics, gate, up and their product.
// Named parts that are recomputed leave their inputs only. Only a trained linear layer needs its input, or
// the adapter of a frozen one, which has it whole on every TP rank where the layer is column-parallel.
double kept_bytes(const ModelShape& model, const Layout& layout, const FrameworkOptions& framework,
                  bool sparse);

}  // namespace equipoise
