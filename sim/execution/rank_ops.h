// The ops of a micro-batch on one rank: those of a layer, those at the model's ends, and what they hold for
// each other between forward and backward.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/execution/context_attention.h"
#include "sim/execution/rank_context.h"
#include "sim/step/op_program.h"
#include "sim/workload/ops.h"

namespace equipoise::execution {

// A weight gradient that waits for its op: gradient += out_gradient^T input.
struct WeightProduct {
  Memory out_gradient;
  std::int64_t out_offset = 0;  // elements
  std::int64_t outputs = 0;
  Memory input;
  std::int64_t inputs = 0;
  std::int64_t rows = 0;
  std::size_t shard = 0;  // of the part
};

// The products of one linear layer, which one op makes.
using WeightProducts = std::vector<WeightProduct>;

// One layer, between its forward and the end of its backward. Rows are sequence-parallel (x, norms) or all of
// the CP rank's (the rest).
struct LayerRun {
  Memory input, input_inverse, input_norm;
  AttentionRun attention;
  Memory middle, middle_inverse, middle_norm;
  Memory gate_up, activated;
  std::vector<WeightProducts> waiting;  // for their weight-gradient ops, in order
};

struct HeadRun {
  Memory input, inverse, norm, logits, log_sum;
  std::vector<WeightProducts> waiting;
};

struct MicroBatchRun {
  const MicroBatch* micro_batch = nullptr;
  int index = 0;
  AttentionRows rows;
  AttentionRows inner_rows;                // where CP ranks share out heads
  std::int64_t padded_rows = 0;            // of this CP rank: a multiple of TP
  std::int64_t sequence_rows = 0;          // of this TP rank
  Memory tokens, targets, positions;       // (padded_rows), int32
  Memory weights;                          // (padded_rows), f32: of each row's loss; 0 for padding
  std::vector<std::int32_t> slice_of_row;  // -1: nobody's token
  std::unique_ptr<ContextAttention> attention;
  std::vector<LayerRun> layers;   // by layer of the model; those of other ranks stay empty
  std::vector<ChunkState> chunk;  // likewise
  HeadRun head;
  std::vector<double> slice_losses;  // sums over this rank's tokens
};

// --- The three products of a linear layer with weights (outputs, inputs).

// out (rows, outputs) = input (rows, inputs) weights^T. `pair`: of two tensors that lie one after the other
// (gate and up), here and in the backward.
void linear_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                    const void* input, void* out, bool pair = false);
// input_gradient (rows, inputs) = or += out_gradient (rows, outputs) weights
void linear_backward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                     const void* out_gradient, void* input_gradient, bool add, bool pair = false);
// Adds a product to the part's gradients; the first one of a step sets them.
void add_weight_gradient(const RankContext& rank, Part& part, const WeightProduct& product);
// The memory of a tensor's gradient to be added to: zeroed where nothing of this step has set it.
void* gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);
// A norm's gradient, f32, to be added to.
float* norm_gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);

// --- A norm, of so many rows of a TP rank. Forward fills `inverse` and `out`; backward gives the gradient of
// x and adds to the weight's.
void norm_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                  const Memory& x, Memory& inverse, Memory& out);
Memory norm_backward(const RankContext& rank, Part& part, std::size_t shard, std::int64_t rows,
                     const Memory& x, const Memory& inverse, const Memory& out_gradient);

// --- The ops of one transformer layer on one rank, called one by one in the op program's order: that of
// LayerOps::forward and backward with the CP exchanges between.

class LayerOps {
 public:
  explicit LayerOps(const RankContext& rank) : rank_(rank) {}
  void set_rope(const float* table) { rope_ = table; }  // device table of angles by position

  // `hidden` is the layer's input and becomes its output; rows of this TP rank.
  void begin_forward(MicroBatchRun& run, int layer, Part& part, Memory& hidden);
  void forward(OpName op);
  // `hidden` is the gradient of the layer's output and becomes that of its input.
  void begin_backward(MicroBatchRun& run, int layer, Part& part, Memory& hidden);
  void backward(OpName op);
  void begin_weight_gradients(MicroBatchRun& run, int layer, Part& part);
  void weight_gradient();
  // After the last op of each.
  void end_forward();
  void end_backward();

 private:
  // How often an op of this name came in the layer.
  int next(OpName op) { return count_[at(op)]++; }
  void begin(MicroBatchRun& run, int layer, Part& part, Memory& hidden);
  Memory gathered(const Memory& rows, std::int64_t width);
  void gather(std::int64_t width) { all_ = gathered(rows_, width); }
  void scatter(std::int64_t width);
  void wait_for_weights(WeightProducts products) { layer_->waiting.push_back(std::move(products)); }
  void qkv();
  void rotate(bool inverse, const Memory& query, const Memory& keys);
  void input_gradient(int number);
  void qkv_gradient();
  ContextAttention& begun_attention();
  void attend();
  void synchronize();

  const RankContext& rank_;
  const float* rope_ = nullptr;
  MicroBatchRun* run_ = nullptr;
  LayerRun* layer_ = nullptr;
  Part* part_ = nullptr;
  Memory* hidden_ = nullptr;
  int layer_number_ = 0;
  bool is_backward_ = false;
  std::array<int, kOpNames> count_{};
  int syncs_ = 0, attentions_ = 0;
  // What goes from op to op. `all`: rows of the CP rank that a GEMM reads or has made; `norm_in`: rows of the
  // TP rank that a norm has made or reads.
  Memory all_, rows_, norm_gradient_, middle_gradient_, activated_gradient_, gate_up_gradient_;
  AttentionGradient attention_gradient_;
};

// --- The ops at the model's ends on one rank: embedding, and head with loss. The vocabulary is dealt to the
// TP ranks; those at its end may hold fewer tokens, so there are no padded logits.

// The parts that hold the ends' parameters on this rank.
struct EndParts {
  Part* embedding = nullptr;
  Part* head = nullptr;  // the final norm, and the head's weights unless they are the embedding's
};

class EndOps {
 public:
  explicit EndOps(const RankContext& rank) : rank_(rank) {}

  // `counts_loss`: of a forward whose activations are kept; one that is run for its keys only does not count.
  void begin(BlockRole role, MicroBatchRun& run, EndParts parts, Memory& hidden, bool counts_loss);
  void run(OpName op);
  void end();

 private:
  void embedding_forward(OpName op);
  void embedding_backward(OpName op);
  void head_forward(OpName op);
  void head_backward(OpName op);
  void gather(const Memory& rows);
  void scatter();
  void losses();
  [[nodiscard]] bool shares_embedding() const { return parts_.head->tensors.size() == 1; }
  [[nodiscard]] Part& head_part() const { return shares_embedding() ? *parts_.embedding : *parts_.head; }
  [[nodiscard]] std::size_t norm_shard() const { return parts_.head->tensors.size() - 1; }

  const RankContext& rank_;
  BlockRole role_ = BlockRole::none;
  MicroBatchRun* run_ = nullptr;
  EndParts parts_;
  Memory* hidden_ = nullptr;
  bool counts_loss_ = false;
  Memory all_, rows_, logits_gradient_, local_log_sum_, target_logit_;
};

}  // namespace equipoise::execution
