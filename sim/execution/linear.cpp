#include "sim/execution/linear.h"

namespace equipoise::execution {
namespace {

const TensorShard& at(const Part& part, std::size_t shard) {
  return part.tensors[shard];
}

std::int64_t outputs_of(const Part& part, std::size_t shard, bool pair) {
  return at(part, shard).rows + (pair ? at(part, shard + 1).rows : 0);
}

void forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
             const void* input, void* out, bool pair) {
  if (rows == 0) return;
  const TensorShard& tensor = at(part, shard);
  rank.backend.gemm({rows, outputs_of(part, shard, pair), tensor.columns, false, true, false}, input,
                    rank.at(part.weights, tensor.offset), out);
}

}  // namespace

void linear_forward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                    const void* input, void* out) {
  forward(rank, part, shard, rows, input, out, false);
}

void linear_forward_pair(const RankContext& rank, const Part& part, std::size_t first, std::int64_t rows,
                         const void* input, void* out) {
  forward(rank, part, first, rows, input, out, true);
}

void linear_backward(const RankContext& rank, const Part& part, std::size_t shard, std::int64_t rows,
                     const void* out_gradient, void* input_gradient, bool add, bool pair) {
  if (rows == 0) return;
  const TensorShard& tensor = at(part, shard);
  rank.backend.gemm({rows, tensor.columns, outputs_of(part, shard, pair), false, false, add}, out_gradient,
                    rank.at(part.weights, tensor.offset), input_gradient);
}

void add_weight_gradient(const RankContext& rank, Part& part, const WeightProduct& product) {
  const bool add = part.touched[product.shard] != 0;
  if (product.rows == 0) return;
  rank.backend.gemm({product.outputs, product.inputs, product.rows, true, false, add},
                    rank.at(product.out_gradient, product.out_offset), product.input.data(),
                    rank.at(part.gradients, at(part, product.shard).offset));
  part.touched[product.shard] = 1;
  // A product over gate and up sets both.
  if (product.outputs > at(part, product.shard).rows) part.touched[product.shard + 1] = 1;
}

void* gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard) {
  const TensorShard& tensor = at(part, shard);
  void* gradient = rank.at(part.gradients, tensor.offset);
  if (part.touched[shard] == 0) rank.zero(gradient, tensor.elements());
  part.touched[shard] = 1;
  return gradient;
}

float* norm_gradient_to_add_to(const RankContext& rank, Part& part, std::size_t shard) {
  if (rank.backend.element_type() == kernels::ElementType::f32)
    return static_cast<float*>(gradient_to_add_to(rank, part, shard));
  const TensorShard& tensor = at(part, shard);
  float* gradient = part.norm_gradients.floats() + tensor.offset - part.first_norm;
  if (part.touched[shard] == 0) {
    const std::vector<float> zeros(static_cast<std::size_t>(tensor.elements()), 0.0F);
    rank.backend.to_device(gradient, zeros.data(), zeros.size() * sizeof(float));
  }
  part.touched[shard] = 1;
  return gradient;
}

}  // namespace equipoise::execution
