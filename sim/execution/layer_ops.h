// The ops of one transformer layer on one rank, and the products and norms from which these and the ops at
// the model's ends are built.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "policies/base/index.h"
#include "sim/execution/micro_batch_run.h"
#include "sim/execution/rank_context.h"
#include "sim/workload/ops.h"

namespace equipoise::execution {

// --- The three products of a linear layer with weights (outputs, inputs).

// out (rows, outputs) = input (rows, inputs) weights^T. With `pair` the weights are two adjacent tensors
// (gate and up), here and in the backward.
void linear_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                    const void* input, void* out, bool pair = false);
// input_gradient (rows, inputs) = or += out_gradient (rows, outputs) weights
void linear_backward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                     const void* out_gradient, void* input_gradient, bool add, bool pair = false);
// Adds a product to the part's gradients; the first one of a step sets them.
void add_weight_gradient(const RankContext& rank, Part& part, const WeightProduct& product);
// Memory of a tensor's gradient for additions: zeroed if nothing in this step has set it.
void* gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);
float* norm_gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard);

// --- A norm of so many rows of a TP rank. Forward fills `inverse` and `out`; backward gives the gradient of
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
  // Must be called after the last op of a forward or backward.
  void end_forward();
  void end_backward();

 private:
  // How often the layer has run an op of this name.
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
  // What ops hand to later ops. `all` has the CP rank's rows, which a GEMM reads or makes; `norm_in` the TP
  // rank's rows, which a norm makes or reads.
  Memory all_, rows_, norm_gradient_, middle_gradient_, activated_gradient_, gate_up_gradient_;
  AttentionGradient attention_gradient_;
};

}  // namespace equipoise::execution
