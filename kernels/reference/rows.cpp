// The row ops again, in float64, each written from its definition, with the random inputs that it is checked
// and timed on. An op is three functions here: its reference, its check, and `fill`, the call that is timed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/checker.h"
#include "kernels/reference/row_tensors.h"

namespace equipoise::kernels {
namespace {

constexpr double kRopeBase = 10000.0;
constexpr float kEpsilon = 1e-5F;

using reference::index;

std::string text_of(const Rows& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
}

// --- RMSNorm

double inverse_rms(const Rows& shape, double epsilon, const Values& x, std::int64_t row) {
  double sum = 0;
  for (std::int64_t j = 0; j < shape.columns; ++j) {
    sum += x[index(row, shape.columns, j)] * x[index(row, shape.columns, j)];
  }
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
  for (double& value : gradient.weight) value += 1.0;  // it adds to what was there
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
  const std::string what = std::to_string(shape.rows) + " rows, " + std::to_string(shape.heads) +
                           " heads of " + std::to_string(shape.head_dim);
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
  const auto consecutive = [&] {  // as in a document
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
  const Input before = checker.input(elements);  // exact in either type, so its f32 copies are too
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
  // Some targets lie in this shard, some in another.
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
  // As if the other shards held as much probability again: the sum over all is larger by log 2.
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

const std::int32_t* some_targets(const Rows& shape, RowTensors& tensors) {
  return tensors.shared_integers([&] {
    std::vector<std::int32_t> targets(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % shape.columns);
    return targets;
  });
}

void fill(CrossEntropy& call, const Rows& shape, RowTensors& tensors) {
  call = {shape,
          0,
          tensors.elements(shape.rows * shape.columns),
          some_targets(shape, tensors),
          tensors.positive_floats(shape.rows),
          tensors.floats(shape.rows)};
}

void fill(CrossEntropyBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape,
          0,
          tensors.elements(n),
          some_targets(shape, tensors),
          tensors.positive_floats(shape.rows),
          tensors.floats(shape.rows),
          tensors.elements(n)};
}

// --- Embedding over a shard of the vocabulary

constexpr std::int64_t kTokensHere = 23;  // of the checked shard: few, so that tokens come up again

// Calls body(row, row of the table) for every row whose token the shard holds.
template <class Body>
void for_held_tokens(std::span<const std::int32_t> tokens, std::int64_t first_token, Body body) {
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const std::int64_t token = tokens[row] - first_token;
    if (token >= 0 && token < kTokensHere) body(static_cast<std::int64_t>(row), token);
  }
}

void check_embedding(Checker& checker, const Rows& shape) {
  constexpr std::int32_t kFirst = 11;
  const std::string what = text_of(shape) + ", " + std::to_string(kTokensHere) + " tokens";
  Backend& backend = checker.backend();
  const auto tokens = checker.integers(shape.rows, 2 * kFirst + static_cast<std::int32_t>(kTokensHere));
  const Buffer device_tokens = upload_integers(backend, tokens);
  const Input table = checker.input(kTokensHere * shape.columns);
  const Input out_gradient = checker.input(shape.rows * shape.columns);
  const Input before = checker.input(kTokensHere * shape.columns);
  const Buffer out = checker.output(shape.rows * shape.columns);
  backend.run(
      Embedding{shape, kFirst, kTokensHere, device_tokens.integers(), table.device.data(), out.data()});
  backend.run(EmbeddingBackward{shape, kFirst, kTokensHere, device_tokens.integers(),
                                out_gradient.device.data(), before.device.data()});
  Values expected(static_cast<std::size_t>(shape.rows * shape.columns), 0.0);
  Values gradient(before.values);  // it adds to what was there
  for_held_tokens(tokens, kFirst, [&](std::int64_t row, std::int64_t token) {
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = index(row, shape.columns, j);
      const std::size_t entry = index(token, shape.columns, j);
      expected[at] = table.values[entry];
      gradient[entry] += out_gradient.values[at];
    }
  });
  checker.compare("embedding", "out", what, expected, out, checker.limits().elementwise);
  checker.compare("embedding_backward", "table_gradient", what, gradient, before.device,
                  checker.limits().elementwise);
}

// The timed table has as many entries as the call has rows, in an order that jumps: what is moved is what the
// table of row ops says, and no row lies beside the one before it.
const std::int32_t* some_tokens(const Rows& shape, RowTensors& tensors) {
  return tensors.shared_integers([&] {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % shape.rows);
    return tokens;
  });
}

void fill(Embedding& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape, 0, shape.rows, some_tokens(shape, tensors), tensors.elements(n), tensors.elements(n)};
}

void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors) {
  const std::int64_t n = shape.rows * shape.columns;
  call = {shape, 0, shape.rows, some_tokens(shape, tensors), tensors.elements(n), tensors.elements(n)};
}

// --- Joining two attentions over disjoint keys

struct Merged {
  Values out;
  Values log_sum;
};

// From the definition: numerators add, denominators add. `highest` only keeps the exponentials in range.
Merged attention_merge(int head_dim, const Values& out, const Values& log_sum, const Values& part,
                       const Values& part_log_sum) {
  Merged result{Values(out.size()), Values(log_sum.size())};
  for (std::size_t i = 0; i < log_sum.size(); ++i) {
    const double highest = std::max(log_sum[i], part_log_sum[i]);
    const double own = std::exp(log_sum[i] - highest);
    const double other = std::exp(part_log_sum[i] - highest);
    result.log_sum[i] = highest + std::log(own + other);
    for (std::size_t c = 0; c < static_cast<std::size_t>(head_dim); ++c) {
      const std::size_t at = i * static_cast<std::size_t>(head_dim) + c;
      result.out[at] = ((own > 0 ? own * out[at] : 0) + (other > 0 ? other * part[at] : 0)) / (own + other);
    }
  }
  return result;
}

void check_attention_merge(Checker& checker, const Rows& shape) {
  constexpr int kHeads = 3;
  const auto head_dim = static_cast<int>(shape.columns);
  const std::string what = std::to_string(shape.rows) + " rows, " + std::to_string(kHeads) + " heads of " +
                           std::to_string(head_dim);
  Backend& backend = checker.backend();
  const std::int64_t sums = shape.rows * kHeads;
  const Input out = checker.input(sums * head_dim);
  const Input part = checker.input(sums * head_dim);
  // Every fifth row of a head saw no key on one side, in turn.
  std::vector<float> own(static_cast<std::size_t>(sums));
  std::vector<float> other(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = 0.5F * static_cast<float>(i % 7) - 1.25F;
    other[i] = 0.75F * static_cast<float>(i % 4) + 0.125F;
    if (i % 5 == 1) (i % 2 == 0 ? own : other)[i] = -std::numeric_limits<float>::infinity();
  }
  const Buffer log_sum = upload_f32(backend, own);
  const Buffer part_log_sum = upload_f32(backend, other);
  backend.run(AttentionMerge{shape.rows, kHeads, head_dim, out.device.data(), log_sum.floats(),
                             part.device.data(), part_log_sum.floats()});
  const Merged expected = attention_merge(head_dim, out.values, {own.begin(), own.end()}, part.values,
                                          {other.begin(), other.end()});
  checker.compare("attention_merge", "out", what, expected.out, out.device, checker.limits().elementwise);
  checker.compare_f32("attention_merge", "log_sum", what, expected.log_sum, log_sum);
}

void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors) {
  constexpr int kHeadDim = 64;
  const std::int64_t n = shape.rows * shape.columns;
  const std::int64_t heads = shape.columns / kHeadDim;
  call.rows = shape.rows;
  call.heads = static_cast<int>(heads);
  call.head_dim = kHeadDim;
  call.out = tensors.elements(n);
  call.log_sum = tensors.positive_floats(shape.rows * heads);
  call.part = tensors.elements(n);
  call.part_log_sum = tensors.positive_floats(shape.rows * heads);
}

// --- All of them

// Each checks both passes of an op.
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
