// The ops of a LLaMA in float64, forward and backward for one sequence, each written from its definition.
// They judge what is really executed, so they share no code with it and take no shortcut. Only attention goes
// block by block over queries, so that its memory does not grow with the square of the sequence.
#pragma once

#include <Eigen/Core>
#include <cstdint>

namespace equipoise::execution::reference {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Ref<const Matrix>;  // activations, one row per token
using ViewToAdd = Eigen::Ref<Matrix>;   // gradients are added to its values

// y = x / sqrt(mean(x^2) + eps) * weight, row by row; weight is [1, columns].
Matrix rms_norm(const View& x, const View& weight);
// Returns the gradient of x.
Matrix rms_norm_backward(const View& x, const View& weight, const View& out_gradient,
                         ViewToAdd weight_gradient);

// y = x W^T, weight [outputs, inputs].
Matrix linear(const View& x, const View& weight);
Matrix linear_backward(const View& x, const View& weight, const View& out_gradient,
                       ViewToAdd weight_gradient);

struct HeadShape {
  int query_heads = 1;
  int kv_heads = 1;  // query head h reads K and V of head h / (query_heads / kv_heads)
  int head_dim = 2;
};

// Turns the pair (i, i + head_dim / 2) of every head by position * base^(-2 i / head_dim); row r is position
// r.
enum class Turn : std::int8_t { forward = 1, back = -1 };
void rope(Matrix& x, int heads, int head_dim, Turn turn);

// softmax(q k^T / sqrt(head_dim)) v, a query seeing the keys up to its own.
Matrix attention(const HeadShape& shape, const View& q, const View& k, const View& v);
struct AttentionGradient {
  Matrix q;
  Matrix k;
  Matrix v;
};
AttentionGradient attention_backward(const HeadShape& shape, const View& q, const View& k, const View& v,
                                     const View& out_gradient);

Matrix swiglu(const View& gate, const View& up);
struct SwigluGradient {
  Matrix gate;
  Matrix up;
};
SwigluGradient swiglu_backward(const View& gate, const View& up, const View& out_gradient);

}  // namespace equipoise::execution::reference
