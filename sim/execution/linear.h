// The three products of a linear layer with weights (outputs, inputs).
#pragma once

#include "sim/execution/micro_batch_run.h"
#include "sim/execution/rank_context.h"

namespace equipoise::execution {

// out (rows, outputs) = input (rows, inputs) weights^T
void linear_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                    const void* input, void* out);
// The same for two tensors that lie one after the other (gate and up).
void linear_forward_pair(const RankContext& rank, const Part& part, std::size_t first, std::int64_t rows,
                         const void* input, void* out);
// input_gradient (rows, inputs) = or += out_gradient (rows, outputs) weights
void linear_backward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                     const void* out_gradient, void* input_gradient, bool add, bool pair = false);
// Adds a product to the part's gradients; the first one of a step sets them.
void add_weight_gradient(const RankContext& rank, Part& part, const WeightProduct& product);
// The memory of a tensor's gradient to be added to: zeroed where nothing of this step has set it.
void* gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);
// A norm's gradient, f32, to be added to.
float* norm_gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);

}  // namespace equipoise::execution
