#include "sim/execution/reference_ops.h"

#include <algorithm>
#include <cmath>

#include "sim/execution/float64_gemm.h"
#include "sim/execution/parameters.h"

namespace equipoise::execution::reference {
namespace {

using Index = Eigen::Index;

constexpr Index kQueryBlock = 256;

Operand operand(const View& m) {
  return {m.data(), m.outerStride(), 1};
}
Operand transposed(const View& m) {
  return {m.data(), 1, m.outerStride()};
}

// c += a b, a b^T or a^T b
void add_product(const View& a, const View& b, ViewToAdd c) {
  execution::add_product({c.rows(), c.cols(), a.cols(), operand(a), operand(b), c.data(), c.outerStride()});
}
void add_times_transposed(const View& a, const View& b, ViewToAdd c) {
  execution::add_product(
      {c.rows(), c.cols(), a.cols(), operand(a), transposed(b), c.data(), c.outerStride()});
}
void add_transposed_times(const View& a, const View& b, ViewToAdd c) {
  execution::add_product(
      {c.rows(), c.cols(), a.rows(), transposed(a), operand(b), c.data(), c.outerStride()});
}

double inverse_rms(const View& x, Index row) {
  double squares = 0;
  for (Index j = 0; j < x.cols(); ++j) squares += x(row, j) * x(row, j);
  return 1.0 / std::sqrt(squares / static_cast<double>(x.cols()) + kNormEpsilon);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// The attention of one head for queries [begin, end), which see keys [0, end).
struct HeadBlock {
  Index begin = 0;
  Index end = 0;
  Index query_column = 0;
  Index kv_column = 0;
  Index width = 0;  // head_dim

  template <class M>  // a view, or a gradient to add to
  [[nodiscard]] auto queries(M& q) const {
    return q.block(begin, query_column, end - begin, width);
  }
  template <class M>
  [[nodiscard]] auto keys(M& k) const {
    return k.block(0, kv_column, end, width);
  }
};

template <class Work>
void for_each_block(const HeadShape& shape, Index tokens, const Work& work) {
  const int sharing = shape.query_heads / shape.kv_heads;
  for (int head = 0; head < shape.query_heads; ++head) {
    for (Index begin = 0; begin < tokens; begin += kQueryBlock) {
      work(HeadBlock{begin, std::min(begin + kQueryBlock, tokens), Index{head} * shape.head_dim,
                     Index{head / sharing} * shape.head_dim, shape.head_dim});
    }
  }
}

Matrix probabilities(const HeadShape& shape, const HeadBlock& block, const View& q, const View& k) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  Matrix p = Matrix::Zero(block.end - block.begin, block.end);
  add_times_transposed(block.queries(q), block.keys(k), p);
  for (Index row = 0; row < p.rows(); ++row) {
    const Index seen = block.begin + row + 1;
    auto scores = p.row(row).head(seen).array();
    scores = (scale * (scores - scores.maxCoeff())).exp();
    scores /= scores.sum();
    p.row(row).tail(p.cols() - seen).setZero();
  }
  return p;
}

}  // namespace

Matrix rms_norm(const View& x, const View& weight) {
  Matrix out(x.rows(), x.cols());
  for (Index row = 0; row < x.rows(); ++row) {
    const double inverse = inverse_rms(x, row);
    for (Index j = 0; j < x.cols(); ++j) out(row, j) = x(row, j) * inverse * weight(0, j);
  }
  return out;
}

// With r = (mean(x^2) + eps)^(-1/2), y_j = x_j r w_j and dr/dx_i = -r^3 x_i / n:
// dx_i = dy_i w_i r - r^3 x_i / n * sum_j dy_j w_j x_j.
Matrix rms_norm_backward(const View& x, const View& weight, const View& out_gradient,
                         ViewToAdd weight_gradient) {
  Matrix gradient(x.rows(), x.cols());
  for (Index row = 0; row < x.rows(); ++row) {
    const double r = inverse_rms(x, row);
    double pull = 0;
    for (Index j = 0; j < x.cols(); ++j) {
      weight_gradient(0, j) += out_gradient(row, j) * x(row, j) * r;
      pull += out_gradient(row, j) * weight(0, j) * x(row, j);
    }
    pull *= r * r * r / static_cast<double>(x.cols());
    for (Index j = 0; j < x.cols(); ++j)
      gradient(row, j) = out_gradient(row, j) * weight(0, j) * r - x(row, j) * pull;
  }
  return gradient;
}

Matrix linear(const View& x, const View& weight) {
  Matrix out = Matrix::Zero(x.rows(), weight.rows());
  add_times_transposed(x, weight, out);
  return out;
}

Matrix linear_backward(const View& x, const View& weight, const View& out_gradient,
                       ViewToAdd weight_gradient) {
  add_transposed_times(out_gradient, x, weight_gradient);
  Matrix gradient = Matrix::Zero(x.rows(), x.cols());
  add_product(out_gradient, weight, gradient);
  return gradient;
}

void rope(Matrix& x, int heads, int head_dim, Turn turn) {
  const int half = head_dim / 2;
  for (Index position = 0; position < x.rows(); ++position) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * std::pow(kRopeBase, -2.0 * i / head_dim);
      const double cosine = std::cos(angle);
      const double sine = static_cast<double>(turn) * std::sin(angle);
      for (int head = 0; head < heads; ++head) {
        double& low = x(position, Index{head} * head_dim + i);
        double& high = x(position, Index{head} * head_dim + i + half);
        const double turned = low * cosine - high * sine;
        high = high * cosine + low * sine;
        low = turned;
      }
    }
  }
}

Matrix attention(const HeadShape& shape, const View& q, const View& k, const View& v) {
  Matrix out = Matrix::Zero(q.rows(), q.cols());
  for_each_block(shape, q.rows(), [&](const HeadBlock& block) {
    add_product(probabilities(shape, block, q, k), block.keys(v), block.queries(out));
  });
  return out;
}

// With out = p v and p = softmax(s) by row: dp = dout v^T, ds = p (dp - sum_j p_j dp_j).
AttentionGradient attention_backward(const HeadShape& shape, const View& q, const View& k, const View& v,
                                     const View& out_gradient) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  AttentionGradient gradient{Matrix::Zero(q.rows(), q.cols()), Matrix::Zero(k.rows(), k.cols()),
                             Matrix::Zero(v.rows(), v.cols())};
  for_each_block(shape, q.rows(), [&](const HeadBlock& block) {
    const Matrix p = probabilities(shape, block, q, k);
    add_transposed_times(p, block.queries(out_gradient), block.keys(gradient.v));
    Matrix score = Matrix::Zero(p.rows(), p.cols());
    add_times_transposed(block.queries(out_gradient), block.keys(v), score);
    for (Index row = 0; row < p.rows(); ++row) {
      const double mean = p.row(row).dot(score.row(row));
      score.row(row).array() = scale * p.row(row).array() * (score.row(row).array() - mean);
    }
    add_product(score, block.keys(k), block.queries(gradient.q));
    add_transposed_times(score, block.queries(q), block.keys(gradient.k));
  });
  return gradient;
}

Matrix swiglu(const View& gate, const View& up) {
  Matrix out(gate.rows(), gate.cols());
  for (Index row = 0; row < gate.rows(); ++row)
    for (Index j = 0; j < gate.cols(); ++j) out(row, j) = gate(row, j) * sigmoid(gate(row, j)) * up(row, j);
  return out;
}

SwigluGradient swiglu_backward(const View& gate, const View& up, const View& out_gradient) {
  SwigluGradient gradient{Matrix(gate.rows(), gate.cols()), Matrix(gate.rows(), gate.cols())};
  for (Index row = 0; row < gate.rows(); ++row) {
    for (Index j = 0; j < gate.cols(); ++j) {
      const double g = gate(row, j);
      const double s = sigmoid(g);
      gradient.gate(row, j) = out_gradient(row, j) * up(row, j) * (s + g * s * (1.0 - s));
      gradient.up(row, j) = out_gradient(row, j) * g * s;
    }
  }
  return gradient;
}

}  // namespace equipoise::execution::reference
