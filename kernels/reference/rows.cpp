// The row ops in float64, each written from its definition, with the random inputs for its checks and
// measurements. An op has three functions here: its reference, its check, and `fill`, the timed call.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels {
namespace {

constexpr double kRopeBase = 10000.0;
constexpr float kEpsilon = 1e-5F;

using reference::index;

// --- RMSNorm

double inverse_rms(const Rows& shape, double epsilon, const Values& x, std::int64_t row) {
  double sum = 0;
  for (std::int64_t j = 0; j < shape.columns; ++j)
    sum += x[index(row, shape.columns, j)] * x[index(row, shape.columns, j)];
  return 1.0 / std::sqrt(sum / static_cast<double>(shape.columns) + epsilon);
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

struct RmsNormGradient {
  Values x;
  Values weight;
};

RmsNormGradient rms_norm_gradient(const Rows& shape, double epsilon, const Values& x, const Values& weight,
                                  const Values& out_gradient) {
  RmsNormGradient gradient{Values(x.size()), Values(weight.size(), 0.0)};
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const double inverse = inverse_rms(shape, epsilon, x, row);
    double pull = 0;  // effect of every element on the row's norm
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

void check_rms_norm(Checker& checker, const Rows& shape) {
  const std::string what = text_of(shape);
  const std::int64_t count = shape.rows * shape.columns;
  Backend& backend = checker.backend();
  const Input x = checker.input(count, 3.0F);
  const Input weight = checker.input(shape.columns);
  const Input out_gradient = checker.input(count);
  const Buffer out = checker.output(count);
  const Buffer inverse = checker.statistics(shape.rows);
  backend.run(RmsNorm{shape, kEpsilon, x.device.data(), weight.device.data(), out.data(), inverse.floats()});
  checker.compare("rms_norm", "out", what, rms_norm(shape, kEpsilon, x.values, weight.values), out,
                  checker.limits().elementwise);
  const Buffer dx = checker.output(count);
  const std::vector<float> before(static_cast<std::size_t>(shape.columns), 1.0F);
  const Buffer dweight = upload_f32(backend, before);
  backend.run(RmsNormBackward{shape, x.device.data(), weight.device.data(), inverse.floats(),
                              out_gradient.device.data(), dx.data(), dweight.floats()});
  auto gradient = rms_norm_gradient(shape, kEpsilon, x.values, weight.values, out_gradient.values);
  for (double& value : gradient.weight) value += 1.0;  // the op adds to existing values
  checker.compare("rms_norm_backward", "x_gradient", what, gradient.x, dx, checker.limits().elementwise);
  checker.compare_f32("rms_norm_backward", "weight_gradient", what, gradient.weight, dweight);
}

void fill(RmsNorm& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape,
          kEpsilon,
          tensors.elements(n),
          tensors.shared_elements(shape.columns),
          tensors.elements(n),
          tensors.positive_floats(shape.rows)};
}

void fill(RmsNormBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape,
          tensors.elements(n),
          tensors.shared_elements(shape.columns),
          tensors.positive_floats(shape.rows),
          tensors.elements(n),
          tensors.elements(n),
          tensors.floats(shape.columns)};
}

// --- Rotary embedding

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

void check_rope(Checker& checker, const RopeShape& shape) {
  const std::string what = concatenated(shape.rows, " rows, ", shape.heads, " heads of ", shape.head_dim);
  constexpr int kPositions = 512;
  Backend& backend = checker.backend();
  std::vector<float> table(static_cast<std::size_t>(kPositions) * static_cast<std::size_t>(shape.head_dim));
  fill_rope_table(table, shape.head_dim, kRopeBase);
  const Buffer device_table = upload_f32(backend, table);
  const std::vector<std::int32_t> positions = checker.integers(shape.rows, kPositions);
  const Buffer device_positions = upload_integers(backend, positions);
  for (const bool inverse : {false, true}) {
    const Input x = checker.input(shape.rows * shape.heads * shape.head_dim);
    backend.run(Rope{shape, inverse, device_positions.integers(), device_table.floats(), x.device.data()});
    checker.compare(inverse ? "rope_backward" : "rope", "x", what,
                    rope(shape, kRopeBase, positions, inverse, x.values), x.device,
                    checker.limits().elementwise);
  }
}

void fill(Rope& call, const Rows& shape, RowTensors& tensors) {
  constexpr int kHeadDim = 64;
  constexpr std::int64_t kPositions = 4096;
  const auto table = [] {
    std::vector<float> angles(kPositions * kHeadDim);
    fill_rope_table(angles, kHeadDim, kRopeBase);
    return angles;
  };
  const auto consecutive = [&] {  // consecutive, as in a document
    std::vector<std::int32_t> positions(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < positions.size(); ++i)
      positions[i] = static_cast<std::int32_t>(i % kPositions);
    return positions;
  };
  call.shape = {shape.rows, static_cast<int>(shape.columns / kHeadDim), kHeadDim};
  call.positions = tensors.shared_integers(consecutive);
  call.table = tensors.shared_floats(table);
  call.x = tensors.elements(shape.rows * shape.columns);
}

// --- SwiGLU

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
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

void check_swiglu(Checker& checker, const Rows& shape) {
  const std::string what = text_of(shape);
  const std::int64_t count = shape.rows * shape.columns;
  Backend& backend = checker.backend();
  const Input gate_up = checker.input(2 * count, 4.0F);
  const Input out_gradient = checker.input(count);
  const Buffer out = checker.output(count);
  backend.run(Swiglu{shape, gate_up.device.data(), out.data()});
  checker.compare("swiglu", "out", what, swiglu(shape, gate_up.values), out, checker.limits().elementwise);
  const Buffer gradient = checker.output(2 * count);
  backend.run(SwigluBackward{shape, gate_up.device.data(), out_gradient.device.data(), gradient.data()});
  checker.compare("swiglu_backward", "gate_up_gradient", what,
                  swiglu_gradient(shape, gate_up.values, out_gradient.values), gradient,
                  checker.limits().elementwise);
}

void fill(Swiglu& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape, tensors.elements(2 * n), tensors.elements(n)};
}

void fill(SwigluBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape, tensors.elements(2 * n), tensors.elements(n), tensors.elements(2 * n)};
}

// --- Residual addition

void check_residual_add(Checker& checker, const Rows& shape) {
  const std::int64_t elements = shape.rows * shape.columns;
  const Input x = checker.input(elements);
  const Input residual = checker.input(elements, 2.0F);
  const Buffer out = checker.output(elements);
  checker.backend().run(ResidualAdd{elements, x.device.data(), residual.device.data(), out.data()});
  Values expected(x.values);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual.values[i];
  checker.compare("residual_add", "out", std::to_string(elements) + " elements", expected, out,
                  checker.limits().elementwise);
}

void fill(ResidualAdd& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {n, tensors.elements(n), tensors.elements(n), tensors.elements(n)};
}

// --- Adam

struct AdamState {
  Values master;
  Values mean;
  Values square;
};

AdamState adam_step(const AdamStep& step, const Values& gradient, AdamState state) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    state.mean[i] = step.beta1 * state.mean[i] + (1.0 - step.beta1) * gradient[i];
    state.square[i] = step.beta2 * state.square[i] + (1.0 - step.beta2) * gradient[i] * gradient[i];
    state.master[i] -= step.rate * state.mean[i] / (std::sqrt(state.square[i]) + step.epsilon);
  }
  return state;
}

void check_adam(Checker& checker, const Rows& shape) {
  const std::int64_t elements = shape.rows * shape.columns;
  const std::string what = std::to_string(elements) + " elements";
  AdamStep step;
  step.elements = elements;
  step.rate = 0.1F;
  Backend& backend = checker.backend();
  const Input gradient = checker.input(elements);
  const Input before = checker.input(elements);  // exact in either type, and hence also in its f32 copies
  const Input mean_before = checker.input(elements);
  Values positive(mean_before.values);
  for (double& value : positive) value *= value;
  const std::vector<float> square_f32(positive.begin(), positive.end());
  const std::vector<float> master_f32(before.values.begin(), before.values.end());
  const std::vector<float> mean_f32(mean_before.values.begin(), mean_before.values.end());
  const Buffer master = upload_f32(backend, master_f32);
  const Buffer mean = upload_f32(backend, mean_f32);
  const Buffer square = upload_f32(backend, square_f32);
  const Buffer weights = checker.output(elements);
  backend.run(
      Adam{step, gradient.device.data(), master.floats(), mean.floats(), square.floats(), weights.data()});
  const auto expected = adam_step(
      step, gradient.values, {before.values, mean_before.values, {square_f32.begin(), square_f32.end()}});
  checker.compare_f32("adam_step", "master", what, expected.master, master);
  checker.compare_f32("adam_step", "mean", what, expected.mean, mean);
  checker.compare_f32("adam_step", "square", what, expected.square, square);
  checker.compare("adam_step", "weights", what, expected.master, weights, checker.limits().elementwise);
}

void fill(Adam& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call.step.elements = n;
  call.gradient = tensors.elements(n);
  call.master = tensors.floats(n);
  call.mean = tensors.floats(n);
  call.square = tensors.positive_floats(n);
  call.weights = tensors.elements(n);
}

// --- Cross-entropy over a shard of the vocabulary

struct CrossEntropyValues {
  Values log_sum;
  Values target_logit;
};

CrossEntropyValues cross_entropy(const Rows& shape, std::int64_t first_token, const Values& logits,
                                 std::span<const std::int32_t> targets) {
  CrossEntropyValues result{Values(static_cast<std::size_t>(shape.rows)),
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

void check_cross_entropy(Checker& checker, const Rows& shape, std::int64_t first_token) {
  const std::string what = text_of(shape) + " from token " + std::to_string(first_token);
  Backend& backend = checker.backend();
  const Input logits = checker.input(shape.rows * shape.columns, 5.0F);
  // Some targets are in this shard, others in another one.
  const auto targets =
      checker.integers(shape.rows, static_cast<std::int32_t>(first_token + 2 * shape.columns));
  const Buffer device_targets = upload_integers(backend, targets);
  const Buffer log_sum = checker.statistics(shape.rows);
  const Buffer target_logit = checker.statistics(shape.rows);
  backend.run(CrossEntropy{shape, first_token, logits.device.data(), device_targets.integers(),
                           log_sum.floats(), target_logit.floats()});
  const auto expected = cross_entropy(shape, first_token, logits.values, targets);
  checker.compare_f32("cross_entropy", "log_sum", what, expected.log_sum, log_sum);
  checker.compare_f32("cross_entropy", "target_logit", what, expected.target_logit, target_logit);
  // Acts as if the other shards had the same total probability, so that the sum over all is larger by log 2.
  Values total(expected.log_sum);
  for (double& value : total) value += std::log(2.0);
  const std::vector<float> total_f32(total.begin(), total.end());
  std::vector<float> weights(static_cast<std::size_t>(shape.rows));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.5F + 0.25F * static_cast<float>(i % 3);
  const Buffer device_total = upload_f32(backend, total_f32);
  const Buffer device_weights = upload_f32(backend, weights);
  const Buffer gradient = checker.output(shape.rows * shape.columns);
  backend.run(CrossEntropyBackward{shape, first_token, logits.device.data(), device_targets.integers(),
                                   device_total.floats(), device_weights.floats(), gradient.data()});
  checker.compare("cross_entropy_backward", "logits_gradient", what,
                  cross_entropy_gradient(shape, first_token, logits.values, targets, total,
                                         Values(weights.begin(), weights.end())),
                  gradient, checker.limits().elementwise);
}

void fill(CrossEntropy& call, const Rows& shape, RowTensors& tensors) {
  call = {shape,
          0,
          tensors.elements(shape.rows * shape.columns),
          jumping_integers(shape.rows, shape.columns, tensors),
          tensors.positive_floats(shape.rows),
          tensors.floats(shape.rows)};
}

void fill(CrossEntropyBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape,
          0,
          tensors.elements(n),
          jumping_integers(shape.rows, shape.columns, tensors),
          tensors.positive_floats(shape.rows),
          tensors.floats(shape.rows),
          tensors.elements(n)};
}

// --- The table of all checks.

// Each function checks both passes of an op.
constexpr void (*kChecks[])(Checker&, const Rows&) = {
    check_rms_norm,
    check_swiglu,
    check_residual_add,
    check_adam,
    check_embedding,
    check_attention_merge,
    [](Checker& checker, const Rows& shape) { check_cross_entropy(checker, shape, 0); },
    [](Checker& checker, const Rows& shape) { check_cross_entropy(checker, shape, 300); }};

template <class... Calls>
RowCall empty_call(std::size_t op, std::type_identity<std::variant<Calls...>>) {
  const RowCall calls[] = {Calls{}...};
  return calls[op];
}

}  // namespace

const std::int32_t* jumping_integers(std::int64_t rows, std::int64_t end, RowTensors& tensors) {
  return tensors.shared_integers([&] {
    std::vector<std::int32_t> integers(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < integers.size(); ++i)
      integers[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % end);
    return integers;
  });
}

std::vector<CheckResult> check_row_shapes(Backend& backend, std::uint64_t seed,
                                          std::span<const Rows> shapes) {
  Checker checker(backend, seed);
  for (const Rows& shape : shapes)
    for (const auto check : kChecks) check(checker, shape);
  for (const RopeShape& shape : {RopeShape{19, 3, 64}, RopeShape{8, 2, 128}}) check_rope(checker, shape);
  return checker.take();
}

std::vector<CheckResult> check_rows(Backend& backend, std::uint64_t seed) {
  constexpr Rows kShapes[] = {{7, 64}, {33, 896}, {5, 1000}};
  return check_row_shapes(backend, seed, kShapes);
}

RowCall row_call(std::size_t op, const Rows& shape, RowTensors& tensors) {
  RowCall call = empty_call(op, std::type_identity<RowCall>{});
  std::visit([&](auto& one) { fill(one, shape, tensors); }, call);
  return call;
}

}  // namespace equipoise::kernels
