// What the ops of a micro-batch on one rank hold for each other between forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/plan.h"
#include "sim/execution/context_attention.h"
#include "sim/execution/rank_context.h"

namespace equipoise::execution {

// A weight gradient that waits for its op: gradient += out_gradient^T input.
struct WeightProduct {
  Memory out_gradient;
  std::int64_t out_offset = 0;  // elements
  std::int64_t outputs = 0;
  Memory input;
  std::int64_t inputs = 0;
  std::int64_t rows = 0;
  std::size_t shard = 0;  // the tensor's place in the part
};

// The products of one linear layer, which one op runs.
using WeightProducts = std::vector<WeightProduct>;

// One layer from its forward to the end of its backward. Rows are sequence-parallel (x, norms) or all of the
// CP rank's (the rest).
struct LayerRun {
  Memory input, input_inverse, input_norm;
  AttentionRun attention;
  Memory middle, middle_inverse, middle_norm;
  Memory gate_up, activated;
  std::vector<WeightProducts> waiting;  // for later weight-gradient ops, in order
};

struct HeadRun {
  Memory input, inverse, norm, logits, log_sum;
  std::vector<WeightProducts> waiting;
};

struct MicroBatchRun {
  const MicroBatch* micro_batch = nullptr;
  int index = 0;
  AttentionRows rows;
  AttentionRows inner_rows;                // if CP ranks share heads
  std::int64_t padded_rows = 0;            // rows of this CP rank, rounded up to a multiple of TP
  std::int64_t sequence_rows = 0;          // rows of this TP rank
  Memory tokens, targets, positions;       // (padded_rows), int32
  Memory weights;                          // (padded_rows), f32: weight of each row's loss; 0 for padding
  std::vector<std::int32_t> slice_of_row;  // -1: nobody's token
  std::unique_ptr<ContextAttention> attention;
  std::vector<LayerRun> layers;   // by layer of the model; empty for layers of other ranks
  std::vector<ChunkState> chunk;  // likewise
  HeadRun head;
  std::vector<double> slice_losses;  // sums over this rank's tokens
};

}  // namespace equipoise::execution
