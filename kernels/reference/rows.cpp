#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"

namespace equipoise::kernels::reference {
namespace {

std::size_t index(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double inverse_rms(const Rows& shape, double epsilon, const Values& x, std::int64_t row) {
  double sum = 0;
  for (std::int64_t j = 0; j < shape.columns; ++j) {
    sum += x[index(row, shape.columns, j)] * x[index(row, shape.columns, j)];
  }
  return 1.0 / std::sqrt(sum / static_cast<double>(shape.columns) + epsilon);
}

}  // namespace

Values gemm(const GemmShape& shape, const Values& a, const Values& b, const Values& c_before) {
  Values c(static_cast<std::size_t>(shape.m * shape.n), 0.0);
  if (shape.accumulate) c = c_before;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t k = 0; k < shape.k; ++k) {
      const double left = shape.transpose_a ? a[index(k, shape.m, i)] : a[index(i, shape.k, k)];
      for (std::int64_t j = 0; j < shape.n; ++j) {
        c[index(i, shape.n, j)] +=
            left * (shape.transpose_b ? b[index(j, shape.k, k)] : b[index(k, shape.n, j)]);
      }
    }
  }
  return c;
}

Values rms_norm(const Rows& shape, double epsilon, const Values& x, const Values& weight) {
  Values out(x.size());
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const double inverse = inverse_rms(shape, epsilon, x, row);
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      out[at] = x[at] * inverse * weight[static_cast<std::size_t>(j)];
    }
  }
  return out;
}

RmsNormGradient rms_norm_gradient(const Rows& shape, double epsilon, const Values& x, const Values& weight,
                                  const Values& out_gradient) {
  RmsNormGradient gradient{Values(x.size()), Values(weight.size(), 0.0)};
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const double inverse = inverse_rms(shape, epsilon, x, row);
    double pull = 0;  // of every element on the row's norm
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      pull += out_gradient[at] * weight[static_cast<std::size_t>(j)] * x[at];
      gradient.weight[static_cast<std::size_t>(j)] += out_gradient[at] * x[at] * inverse;
    }
    pull *= inverse * inverse * inverse / static_cast<double>(shape.columns);
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      gradient.x[at] = out_gradient[at] * weight[static_cast<std::size_t>(j)] * inverse - x[at] * pull;
    }
  }
  return gradient;
}

Values rope(const RopeShape& shape, double base, std::span<const std::int32_t> positions, bool inverse,
            const Values& x) {
  Values out(x.size());
  const int half = shape.head_dim / 2;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const double position = positions[static_cast<std::size_t>(row)];
    for (int head = 0; head < shape.heads; ++head) {
      const std::size_t at = index(row * shape.heads + head, shape.head_dim, 0);
      for (int i = 0; i < half; ++i) {
        const double angle = (inverse ? -1.0 : 1.0) * position * std::pow(base, -2.0 * i / shape.head_dim);
        const std::size_t low = at + static_cast<std::size_t>(i);
        const std::size_t high = low + static_cast<std::size_t>(half);
        out[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
        out[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      }
    }
  }
  return out;
}

Values swiglu(const Rows& shape, const Values& gate_up) {
  Values out(static_cast<std::size_t>(shape.rows * shape.columns));
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const double gate = gate_up[index(row, 2 * shape.columns, j)];
      out[index(row, shape.columns, j)] =
          gate * sigmoid(gate) * gate_up[index(row, 2 * shape.columns, shape.columns + j)];
    }
  }
  return out;
}

Values swiglu_gradient(const Rows& shape, const Values& gate_up, const Values& out_gradient) {
  Values gradient(gate_up.size());
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t gate_at = index(row, 2 * shape.columns, j);
      const std::size_t up_at = index(row, 2 * shape.columns, shape.columns + j);
      const double gate = gate_up[gate_at];
      const double s = sigmoid(gate);
      const double d = out_gradient[index(row, shape.columns, j)];
      gradient[gate_at] = d * gate_up[up_at] * (s + gate * s * (1.0 - s));
      gradient[up_at] = d * gate * s;
    }
  }
  return gradient;
}

AdamState adam_step(const AdamStep& step, const Values& gradient, AdamState state) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    state.mean[i] = step.beta1 * state.mean[i] + (1.0 - step.beta1) * gradient[i];
    state.square[i] = step.beta2 * state.square[i] + (1.0 - step.beta2) * gradient[i] * gradient[i];
    state.master[i] -= step.rate * state.mean[i] / (std::sqrt(state.square[i]) + step.epsilon);
  }
  return state;
}

CrossEntropy cross_entropy(const Rows& shape, std::int64_t first_token, const Values& logits,
                           std::span<const std::int32_t> targets) {
  CrossEntropy result{Values(static_cast<std::size_t>(shape.rows)),
                      Values(static_cast<std::size_t>(shape.rows), 0.0)};
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto begin = logits.begin() + row * shape.columns;
    const double highest = *std::max_element(begin, begin + shape.columns);
    double sum = 0;
    for (std::int64_t j = 0; j < shape.columns; ++j) sum += std::exp(begin[j] - highest);
    const auto at = static_cast<std::size_t>(row);
    result.log_sum[at] = highest + std::log(sum);
    const std::int64_t target = targets[at] - first_token;
    if (target >= 0 && target < shape.columns) result.target_logit[at] = begin[target];
  }
  return result;
}

Values cross_entropy_gradient(const Rows& shape, std::int64_t first_token, const Values& logits,
                              std::span<const std::int32_t> targets, const Values& log_sum,
                              const Values& row_weight) {
  Values gradient(logits.size());
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      const double one = targets[r] - first_token == j ? 1.0 : 0.0;
      gradient[at] = (std::exp(logits[at] - log_sum[r]) - one) * row_weight[r];
    }
  }
  return gradient;
}

}  // namespace equipoise::kernels::reference
