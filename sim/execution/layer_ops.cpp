#include "sim/execution/layer_ops.h"

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

const TensorShard& shard_of(const Part& part, std::size_t shard) {
  return part.tensors[shard];
}

std::int64_t outputs_of(const Part& part, std::size_t shard, bool pair) {
  return shard_of(part, shard).rows + (pair ? shard_of(part, shard + 1).rows : 0);
}

using Shards = LayerShards;

[[noreturn]] void no_such_layer_op(OpName op) {
  throw EngineError("real execution: a layer of the op program has an op that no rank can run: ",
                    name_of(op));
}

}  // namespace

void linear_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                    const void* input, void* out, bool pair) {
  if (rows == 0) return;
  const TensorShard& tensor = shard_of(part, shard);
  rank.backend.gemm({rows, outputs_of(part, shard, pair), tensor.columns, false, true, false}, input,
                    rank.at(part.weights, tensor.offset), out);
}

void linear_backward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                     const void* out_gradient, void* input_gradient, bool add, bool pair) {
  if (rows == 0) return;
  const TensorShard& tensor = shard_of(part, shard);
  rank.backend.gemm({rows, tensor.columns, outputs_of(part, shard, pair), false, false, add}, out_gradient,
                    rank.at(part.weights, tensor.offset), input_gradient);
}

void add_weight_gradient(const RankContext& rank, Part& part, const WeightProduct& product) {
  const bool add = part.touched[product.shard] != 0;
  if (product.rows == 0) return;
  rank.backend.gemm({product.outputs, product.inputs, product.rows, true, false, add},
                    rank.at(product.out_gradient, product.out_offset), product.input.data(),
                    rank.at(part.gradients, shard_of(part, product.shard).offset));
  part.touched[product.shard] = 1;
  // A product over gate and up touches both tensors.
  if (product.outputs > shard_of(part, product.shard).rows) part.touched[product.shard + 1] = 1;
}

void* gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard) {
  const TensorShard& tensor = shard_of(part, shard);
  void* gradient = rank.at(part.gradients, tensor.offset);
  if (part.touched[shard] == 0) rank.zero(gradient, tensor.elements());
  part.touched[shard] = 1;
  return gradient;
}

float* norm_gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard) {
  if (rank.backend.element_type() == kernels::ElementType::f32)
    return static_cast<float*>(gradient_to_add_to(rank, part, shard));
  const TensorShard& tensor = shard_of(part, shard);
  float* gradient = part.norm_gradients.floats() + tensor.offset - part.first_norm;
  if (part.touched[shard] == 0) {
    const std::vector<float> zeros(static_cast<std::size_t>(tensor.elements()), 0.0F);
    rank.backend.to_device(gradient, zeros.data(), zeros.size() * sizeof(float));
  }
  part.touched[shard] = 1;
  return gradient;
}

void norm_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                  const Memory& x, Memory& inverse, Memory& out) {
  const std::int64_t width = rank.model.hidden;
  inverse = rank.floats(rows);
  out = rank.elements(rows * width);
  kernels::RmsNorm call{{rows, width}};
  call.epsilon = static_cast<float>(kNormEpsilon);
  call.x = x.data();
  call.weight = rank.at(part.weights, shard_of(part, shard).offset);
  call.out = out.data();
  call.inverse_rms = inverse.floats();
  rank.backend.run(call);
}

Memory norm_backward(const RankContext& rank, Part& part, std::size_t shard, std::int64_t rows,
                     const Memory& x, const Memory& inverse, const Memory& out_gradient) {
  const std::int64_t width = rank.model.hidden;
  Memory gradient = rank.elements(rows * width);
  kernels::RmsNormBackward call{{rows, width}};
  call.x = x.data();
  call.weight = rank.at(part.weights, shard_of(part, shard).offset);
  call.inverse_rms = inverse.floats();
  call.out_gradient = out_gradient.data();
  call.x_gradient = gradient.data();
  call.weight_gradient = norm_gradient_to_add_to(rank, part, shard);
  rank.backend.run(call);
  return gradient;
}

void LayerOps::begin(MicroBatchRun& run, int layer, Part& part, Memory& hidden) {
  run_ = &run;
  layer_ = &run.layers[at(layer)];
  layer_number_ = layer;
  part_ = &part;
  hidden_ = &hidden;
  count_.fill(0);
  syncs_ = attentions_ = 0;
}

void LayerOps::begin_forward(MicroBatchRun& run, int layer, Part& part, Memory& hidden) {
  begin(run, layer, part, hidden);
  is_backward_ = false;
  *layer_ = {};
  layer_->input = hidden;
}

void LayerOps::begin_backward(MicroBatchRun& run, int layer, Part& part, Memory& hidden) {
  begin(run, layer, part, hidden);
  is_backward_ = true;
  rows_ = hidden;
  layer_->waiting.clear();
}

void LayerOps::begin_weight_gradients(MicroBatchRun& run, int layer, Part& part) {
  Memory none;
  begin(run, layer, part, none);
  hidden_ = nullptr;
}

void LayerOps::end_forward() {
  *hidden_ = rows_;
  rows_.reset();
  all_.reset();
}

void LayerOps::end_backward() {
  *hidden_ = rows_;
  for (Memory* memory :
       {&all_, &rows_, &norm_gradient_, &middle_gradient_, &activated_gradient_, &gate_up_gradient_})
    memory->reset();
  attention_gradient_ = {};
  std::vector<WeightProducts> waiting = std::move(layer_->waiting);
  *layer_ = {};
  layer_->waiting = std::move(waiting);
}

// Gathers the rows of all TP ranks, which a column-parallel GEMM needs (sequence parallelism).
Memory LayerOps::gathered(const Memory& rows, std::int64_t width) {
  Memory all = rank_.elements(run_->padded_rows * width);
  rank_.tensor.elements->all_gather(rows.data(), all.data(), run_->sequence_rows * width);
  return all;
}
// Adds up the TP ranks' results; each rank keeps its own rows.
void LayerOps::scatter(std::int64_t width) {
  rows_ = rank_.elements(run_->sequence_rows * width);
  rank_.tensor.elements->reduce_scatter(all_.data(), rows_.data(), run_->sequence_rows * width);
}

void LayerOps::qkv() {
  const Memory& input = all_;
  AttentionRun& attention = layer_->attention;
  const std::int64_t rows = run_->padded_rows, d = rank_.model.head_dim;
  const std::int64_t key_width = rank_.heads.kv * d;
  attention.query = rank_.elements(rows * rank_.heads.query * d);
  attention.keys = rank_.elements(2 * run_->rows.capacity * key_width);
  linear_forward(rank_, *part_, Shards::q, rows, input.data(), attention.query.data());
  linear_forward(rank_, *part_, Shards::k, rows, input.data(), attention.keys.data());
  linear_forward(rank_, *part_, Shards::v, rows, input.data(),
                 rank_.at(attention.keys, run_->rows.capacity * key_width));
}

void LayerOps::rotate(bool inverse, const Memory& query, const Memory& keys) {
  const auto rotate_heads = [&](const Memory& x, int heads) {
    kernels::Rope call{{run_->padded_rows, heads, rank_.model.head_dim}, inverse};
    call.positions = run_->positions.integers();
    call.table = rope_;
    call.x = x.data();
    rank_.backend.run(call);
  };
  rotate_heads(query, rank_.heads.query);
  rotate_heads(keys, rank_.heads.kv);
}

// Attention begins with the first op that belongs to it.
ContextAttention& LayerOps::begun_attention() {
  ContextAttention& attention = *run_->attention;
  if (syncs_ + attentions_ > 0) return attention;
  if (is_backward_)
    attention.begin_backward(layer_->attention, attention_gradient_, layer_number_, rank_.repeats_attention);
  else
    attention.begin_forward(layer_->attention, layer_number_);
  return attention;
}
void LayerOps::attend() {
  ContextAttention& attention = begun_attention();
  is_backward_ ? attention.backward_attend(attentions_++) : attention.forward_attend(attentions_++);
}
void LayerOps::synchronize() {
  ContextAttention& attention = begun_attention();
  is_backward_ ? attention.backward_sync(syncs_++) : attention.forward_sync(syncs_++);
}

void LayerOps::forward(OpName op) {
  const std::int64_t hidden = rank_.model.hidden, rows = run_->padded_rows;
  const bool second = next(op) > 0;
  LayerRun& l = *layer_;
  switch (op) {
    case OpName::rms_norm:
      if (second)
        norm_forward(rank_, *part_, Shards::post_norm, run_->sequence_rows, l.middle, l.middle_inverse,
                     l.middle_norm);
      else
        norm_forward(rank_, *part_, Shards::input_norm, run_->sequence_rows, l.input, l.input_inverse,
                     l.input_norm);
      all_ = rows_ = second ? l.middle_norm : l.input_norm;
      return;
    case OpName::tp_all_gather:
      return gather(hidden);
    case OpName::qkv_gemm:
      return qkv();
    case OpName::rope:
      return rotate(false, l.attention.query, l.attention.keys);
    case OpName::cp_all_gather:
    case OpName::cp_ring_step:
    case OpName::cp_all_to_all:
      return synchronize();
    case OpName::attention:
      return attend();
    case OpName::out_gemm:
      all_ = rank_.elements(rows * hidden);
      linear_forward(rank_, *part_, Shards::o, rows, l.attention.out.data(), all_.data());
      rows_ = all_;
      return;
    case OpName::tp_reduce_scatter:
      return scatter(hidden);
    case OpName::residual: {
      const Memory sum = rank_.elements(run_->sequence_rows * hidden);
      rank_.backend.run(kernels::ResidualAdd{run_->sequence_rows * hidden, rows_.data(),
                                             (second ? l.middle : l.input).data(), sum.data()});
      (second ? rows_ : l.middle) = sum;
      return;
    }
    case OpName::gate_up_gemm:
      l.gate_up = rank_.elements(rows * 2 * rank_.ffn);
      return linear_forward(rank_, *part_, Shards::gate, rows, all_.data(), l.gate_up.data(), true);
    case OpName::activation:
      l.activated = rank_.elements(rows * rank_.ffn);
      return rank_.backend.run(kernels::Swiglu{{rows, rank_.ffn}, l.gate_up.data(), l.activated.data()});
    case OpName::down_gemm:
      all_ = rank_.elements(rows * hidden);
      linear_forward(rank_, *part_, Shards::down, rows, l.activated.data(), all_.data());
      rows_ = all_;
      return;
    case OpName::host_stall:
      return;
    default:
      no_such_layer_op(op);
  }
}

// The linear layers in backward order, from the last to the first.
void LayerOps::input_gradient(int number) {
  const std::int64_t hidden = rank_.model.hidden, rows = run_->padded_rows;
  LayerRun& l = *layer_;
  enum { kDown, kGateUp, kOut, kQkv };
  switch (number) {
    case kDown: {
      const Memory out_gradient = rank_.layout.tensor > 1 ? all_ : rows_;
      activated_gradient_ = rank_.elements(rows * rank_.ffn);
      linear_backward(rank_, *part_, Shards::down, rows, out_gradient.data(), activated_gradient_.data(),
                      false);
      return wait_for_weights({{out_gradient, 0, hidden, l.activated, rank_.ffn, rows, Shards::down}});
    }
    case kGateUp: {
      const Memory input = rank_.layout.tensor > 1 ? all_ : l.middle_norm;
      all_ = rank_.elements(rows * hidden);
      linear_backward(rank_, *part_, Shards::gate, rows, gate_up_gradient_.data(), all_.data(), false, true);
      rows_ = all_;
      return wait_for_weights({{gate_up_gradient_, 0, 2 * rank_.ffn, input, hidden, rows, Shards::gate}});
    }
    case kOut: {
      const Memory out_gradient = rank_.layout.tensor > 1 ? all_ : middle_gradient_;
      const std::int64_t width = std::int64_t{rank_.heads.query} * rank_.model.head_dim;
      attention_gradient_.out = rank_.elements(rows * width);
      linear_backward(rank_, *part_, Shards::o, rows, out_gradient.data(), attention_gradient_.out.data(),
                      false);
      return wait_for_weights({{out_gradient, 0, hidden, l.attention.out, width, rows, Shards::o}});
    }
    default:
      return qkv_gradient();
  }
}

void LayerOps::qkv_gradient() {
  const std::int64_t hidden = rank_.model.hidden, rows = run_->padded_rows;
  const std::int64_t d = rank_.model.head_dim, q = rank_.heads.query * d, k = rank_.heads.kv * d;
  const std::int64_t values = run_->rows.capacity * k;
  const Memory input = rank_.layout.tensor > 1 ? all_ : layer_->input_norm;
  const AttentionGradient& found = attention_gradient_;
  all_ = rank_.elements(rows * hidden);
  linear_backward(rank_, *part_, Shards::q, rows, found.query.data(), all_.data(), false);
  linear_backward(rank_, *part_, Shards::k, rows, found.keys.data(), all_.data(), true);
  linear_backward(rank_, *part_, Shards::v, rows, rank_.at(found.keys, values), all_.data(), true);
  rows_ = all_;
  wait_for_weights({{found.query, 0, q, input, hidden, rows, Shards::q},
                    {found.keys, 0, k, input, hidden, rows, Shards::k},
                    {found.keys, values, k, input, hidden, rows, Shards::v}});
}

void LayerOps::backward(OpName op) {
  const std::int64_t hidden = rank_.model.hidden;
  const int number = op == OpName::weight_gradient ? 0 : next(op);
  LayerRun& l = *layer_;
  switch (op) {
    case OpName::tp_all_gather: {  // output's gradient, FFN's input, attention's input or layer's input
      const Memory* what[] = {&rows_, &l.middle_norm, &middle_gradient_, &l.input_norm};
      all_ = gathered(*what[number], hidden);
      return;
    }
    case OpName::tp_reduce_scatter:
      return scatter(hidden);
    case OpName::input_gradient:
      return input_gradient(number);
    case OpName::weight_gradient:
      return weight_gradient();
    case OpName::activation:
      gate_up_gradient_ = rank_.elements(run_->padded_rows * 2 * rank_.ffn);
      rank_.backend.run(kernels::SwigluBackward{{run_->padded_rows, rank_.ffn},
                                                l.gate_up.data(),
                                                activated_gradient_.data(),
                                                gate_up_gradient_.data()});
      return;
    case OpName::rms_norm:
      norm_gradient_ = number == 0 ? norm_backward(rank_, *part_, Shards::post_norm, run_->sequence_rows,
                                                   l.middle, l.middle_inverse, rows_)
                                   : norm_backward(rank_, *part_, Shards::input_norm, run_->sequence_rows,
                                                   l.input, l.input_inverse, rows_);
      return;
    case OpName::residual: {
      const Memory sum = rank_.elements(run_->sequence_rows * hidden);
      const Memory& past = number == 0 ? *hidden_ : middle_gradient_;
      rank_.backend.run(
          kernels::ResidualAdd{run_->sequence_rows * hidden, norm_gradient_.data(), past.data(), sum.data()});
      (number == 0 ? middle_gradient_ : rows_) = sum;
      return;
    }
    case OpName::cp_all_gather:
    case OpName::cp_reduce_scatter:
    case OpName::cp_ring_step:
    case OpName::cp_all_to_all:
      return synchronize();
    case OpName::attention:
      return attend();
    case OpName::rope:
      run_->attention->end_backward();
      return rotate(true, attention_gradient_.query, attention_gradient_.keys);
    case OpName::host_stall:
      return;
    default:
      no_such_layer_op(op);
  }
}

void LayerOps::weight_gradient() {
  const int number = next(OpName::weight_gradient);
  WeightProducts& products = layer_->waiting.at(static_cast<std::size_t>(number));
  for (const WeightProduct& product : products) add_weight_gradient(rank_, *part_, product);
  products.clear();
}

}  // namespace equipoise::execution
