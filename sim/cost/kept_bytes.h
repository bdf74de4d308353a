// What a layer's forward keeps for its backward.
#pragma once

#include "sim/framework/framework_options.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// Tensors that a layer's backward needs, in bytes per token on one TP rank: the two norm inputs and outputs
// (sequence-parallel), Q, K, V, the attention output with its softmax statistics, gate, up and their product.
// A recurrence has, in place of Q, K and V, what its input projection makes and, with the delta rule, what
// the convolution makes of it and the products inside each chunk; then its result, before and after the gated
// norm. Parts that are recomputed keep only their inputs. A linear layer needs its input if it is trained or
// has an adapter; the adapter of a column-parallel layer has the whole input on every TP rank.
double kept_bytes(const ModelShape& model, const Layout& layout, const FrameworkOptions& framework,
                  LayerKind kind);

}  // namespace equipoise
