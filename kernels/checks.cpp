#include "kernels/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/random_inputs.h"
#include "kernels/reference/reference.h"
#include "kernels/validate.h"

namespace equipoise::kernels {
namespace {

using reference::Values;

constexpr double kRopeBase = 10000.0;
constexpr float kEpsilon = 1e-5F;

// An input as the device holds it and as the reference reads it.
struct Input {
  Buffer device;
  Values values;
};

class Checker {
 public:
  Checker(Backend& backend, std::uint64_t seed)
      : backend_(backend), random_(seed), limits_(check_limits(backend.element_type())) {}

  Input input(std::int64_t count, float scale = 1.0F) {
    const std::vector<float> floats =
        rounded_to(backend_.element_type(), random_values(count, scale, random_));
    return {upload(backend_, floats), Values(floats.begin(), floats.end())};
  }

  std::vector<std::int32_t> integers(std::int64_t count, std::int32_t below) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int32_t& value : values)
      value = static_cast<std::int32_t>(random_.next() % static_cast<std::uint64_t>(below));
    return values;
  }

  Buffer output(std::int64_t count) { return poisoned(backend_, count); }
  Buffer statistics(std::int64_t count) { return poisoned_f32(backend_, count); }

  void compare(const std::string& op, const std::string& tensor, const std::string& shape,
               const Values& expected, const Buffer& got, double limit) {
    results_.push_back({op, tensor, shape, relative_error(expected, download(backend_, got)), limit});
  }
  void compare_f32(const std::string& op, const std::string& tensor, const std::string& shape,
                   const Values& expected, const Buffer& got) {
    results_.push_back(
        {op, tensor, shape, relative_error(expected, download_f32(backend_, got)), limits_.statistics});
  }

  [[nodiscard]] const CheckLimits& limits() const { return limits_; }
  Backend& backend() { return backend_; }
  std::vector<CheckResult> take() { return std::move(results_); }

 private:
  Backend& backend_;
  SplitMix64 random_;
  CheckLimits limits_;
  std::vector<CheckResult> results_;
};

struct AttentionCase {
  const char* what;
  std::vector<Piece> pieces;
};

// Documents packed end to end.
std::vector<Piece> documents(std::initializer_list<std::int64_t> lengths) {
  std::vector<Piece> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    pieces.push_back({begin, length, begin, length});
    begin += length;
  }
  return pieces;
}

std::vector<AttentionCase> attention_cases() {
  return {{"one document", documents({150})},
          {"many short documents", documents({2, 3, 64, 65, 17, 128, 5, 31})},
          {"short queries, long keys", {{0, 5, 0, 260}}},
          // Rank 0 of 2 under per-document sharding of documents of 200 and 93 tokens: first and last chunks.
          {"context-parallel chunks that share keys",
           {{0, 50, 0, 50}, {50, 50, 0, 200}, {100, 24, 200, 24}, {124, 23, 200, 93}}}};
}

std::string describe(const AttentionShape& shape, const char* what) {
  return std::to_string(shape.query_heads) + "/" + std::to_string(shape.kv_heads) + " heads of " +
         std::to_string(shape.head_dim) + ", " + what;
}

void check_attention_case(Checker& checker, const AttentionShape& shape, const AttentionCase& one) {
  const std::string what = describe(shape, one.what);
  const std::int64_t query_count = query_rows_of(one.pieces) * shape.query_heads * shape.head_dim;
  const std::int64_t key_count = key_rows_of(one.pieces) * shape.kv_heads * shape.head_dim;
  Backend& backend = checker.backend();
  const Input query = checker.input(query_count, 4.0F);  // scores of a few units: a softmax that is not flat
  const Input key = checker.input(key_count);
  const Input value = checker.input(key_count);
  const Input out_gradient = checker.input(query_count);
  const Buffer out = checker.output(query_count);
  const Buffer log_sum = checker.statistics(query_count / shape.head_dim);
  const auto forward = backend.plan_attention(shape, one.pieces, Pass::forward);
  backend.attention_forward(*forward, query.device.data(), key.device.data(), value.device.data(), out.data(),
                            log_sum.floats());
  const auto expected = reference::attention(shape, one.pieces, query.values, key.values, value.values);
  checker.compare("attention_forward", "out", what, expected.out, out, checker.limits().attention_forward);
  checker.compare_f32("attention_forward", "log_sum", what, expected.log_sum, log_sum);

  const Buffer dq = checker.output(query_count);
  const Buffer dk = checker.output(key_count);
  const Buffer dv = checker.output(key_count);
  const auto backward = backend.plan_attention(shape, one.pieces, Pass::backward);
  backend.attention_backward(*backward, query.device.data(), key.device.data(), value.device.data(),
                             out.data(), log_sum.floats(), out_gradient.device.data(),
                             {dq.data(), dk.data(), dv.data()});
  const auto gradient = reference::attention_gradient(shape, one.pieces, query.values, key.values,
                                                      value.values, out_gradient.values);
  const double limit = checker.limits().attention_backward;
  checker.compare("attention_backward", "query_gradient", what, gradient.query, dq, limit);
  checker.compare("attention_backward", "key_gradient", what, gradient.key, dk, limit);
  checker.compare("attention_backward", "value_gradient", what, gradient.value, dv, limit);
}

void check_rms_norm(Checker& checker, const Rows& shape) {
  const std::string what = std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
  const std::int64_t count = shape.rows * shape.columns;
  Backend& backend = checker.backend();
  const Input x = checker.input(count, 3.0F);
  const Input weight = checker.input(shape.columns);
  const Input out_gradient = checker.input(count);
  const Buffer out = checker.output(count);
  const Buffer inverse = checker.statistics(shape.rows);
  backend.rms_norm(shape, kEpsilon, x.device.data(), weight.device.data(), out.data(), inverse.floats());
  checker.compare("rms_norm", "out", what, reference::rms_norm(shape, kEpsilon, x.values, weight.values), out,
                  checker.limits().elementwise);
  const Buffer dx = checker.output(count);
  const std::vector<float> before(static_cast<std::size_t>(shape.columns), 1.0F);
  const Buffer dweight = upload_f32(backend, before);
  backend.rms_norm_backward(shape, x.device.data(), weight.device.data(), inverse.floats(),
                            out_gradient.device.data(), dx.data(), dweight.floats());
  auto gradient = reference::rms_norm_gradient(shape, kEpsilon, x.values, weight.values, out_gradient.values);
  for (double& value : gradient.weight) value += 1.0;  // it adds to what was there
  checker.compare("rms_norm_backward", "x_gradient", what, gradient.x, dx, checker.limits().elementwise);
  checker.compare_f32("rms_norm_backward", "weight_gradient", what, gradient.weight, dweight);
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
    backend.rope(shape, inverse, device_positions.integers(), device_table.floats(), x.device.data());
    checker.compare(inverse ? "rope_backward" : "rope", "x", what,
                    reference::rope(shape, kRopeBase, positions, inverse, x.values), x.device,
                    checker.limits().elementwise);
  }
}

void check_swiglu(Checker& checker, const Rows& shape) {
  const std::string what = std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
  const std::int64_t count = shape.rows * shape.columns;
  Backend& backend = checker.backend();
  const Input gate_up = checker.input(2 * count, 4.0F);
  const Input out_gradient = checker.input(count);
  const Buffer out = checker.output(count);
  backend.swiglu(shape, gate_up.device.data(), out.data());
  checker.compare("swiglu", "out", what, reference::swiglu(shape, gate_up.values), out,
                  checker.limits().elementwise);
  const Buffer gradient = checker.output(2 * count);
  backend.swiglu_backward(shape, gate_up.device.data(), out_gradient.device.data(), gradient.data());
  checker.compare("swiglu_backward", "gate_up_gradient", what,
                  reference::swiglu_gradient(shape, gate_up.values, out_gradient.values), gradient,
                  checker.limits().elementwise);
}

void check_residual_add(Checker& checker, std::int64_t elements) {
  const Input x = checker.input(elements);
  const Input residual = checker.input(elements, 2.0F);
  const Buffer out = checker.output(elements);
  checker.backend().residual_add(elements, x.device.data(), residual.device.data(), out.data());
  Values expected(x.values);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual.values[i];
  checker.compare("residual_add", "out", std::to_string(elements) + " elements", expected, out,
                  checker.limits().elementwise);
}

void check_adam(Checker& checker, std::int64_t elements) {
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
  backend.adam_step(step, gradient.device.data(), master.floats(), mean.floats(), square.floats(),
                    weights.data());
  const auto expected = reference::adam_step(
      step, gradient.values, {before.values, mean_before.values, {square_f32.begin(), square_f32.end()}});
  checker.compare_f32("adam_step", "master", what, expected.master, master);
  checker.compare_f32("adam_step", "mean", what, expected.mean, mean);
  checker.compare_f32("adam_step", "square", what, expected.square, square);
  checker.compare("adam_step", "weights", what, expected.master, weights, checker.limits().elementwise);
}

void check_cross_entropy(Checker& checker, const Rows& shape, std::int64_t first_token) {
  const std::string what = std::to_string(shape.rows) + " x " + std::to_string(shape.columns) +
                           " from token " + std::to_string(first_token);
  Backend& backend = checker.backend();
  const Input logits = checker.input(shape.rows * shape.columns, 5.0F);
  // Some targets lie in this shard, some in another.
  const auto targets =
      checker.integers(shape.rows, static_cast<std::int32_t>(first_token + 2 * shape.columns));
  const Buffer device_targets = upload_integers(backend, targets);
  const Buffer log_sum = checker.statistics(shape.rows);
  const Buffer target_logit = checker.statistics(shape.rows);
  backend.cross_entropy(shape, first_token, logits.device.data(), device_targets.integers(), log_sum.floats(),
                        target_logit.floats());
  const auto expected = reference::cross_entropy(shape, first_token, logits.values, targets);
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
  backend.cross_entropy_backward(shape, first_token, logits.device.data(), device_targets.integers(),
                                 device_total.floats(), device_weights.floats(), gradient.data());
  checker.compare("cross_entropy_backward", "logits_gradient", what,
                  reference::cross_entropy_gradient(shape, first_token, logits.values, targets, total,
                                                    Values(weights.begin(), weights.end())),
                  gradient, checker.limits().elementwise);
}

}  // namespace

double relative_error(std::span<const double> expected, std::span<const float> got) {
  if (expected.size() != got.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    const double off = static_cast<double>(got[i]) - expected[i];
    difference += off * off;
    size += expected[i] * expected[i];
  }
  if (size == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference / size);
}

CheckLimits check_limits(ElementType type) {
  if (type == ElementType::f32) return {1e-5, 1e-5, 1e-5, 1e-5, 1e-5};
  return {4e-3, 4e-3, 1e-2, 2e-2, 1e-3};
}

std::vector<CheckResult> check_attention(Backend& backend, std::uint64_t seed) {
  Checker checker(backend, seed);
  for (const AttentionShape& shape : {AttentionShape{64, 1, 1}, AttentionShape{128, 4, 4},
                                      AttentionShape{64, 8, 1}, AttentionShape{128, 8, 2}}) {
    for (const AttentionCase& one : attention_cases()) check_attention_case(checker, shape, one);
  }
  return checker.take();
}

std::vector<CheckResult> check_gemm(Backend& backend, std::uint64_t seed) {
  Checker checker(backend, seed);
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& size : {Size{64, 64, 64}, Size{8, 200, 72}, Size{136, 40, 520}, Size{256, 384, 128}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const GemmShape shape{size.m, size.n, size.k, transpose_a, transpose_b, accumulate};
          const Input a = checker.input(size.m * size.k);
          const Input b = checker.input(size.k * size.n);
          const Input before = checker.input(size.m * size.n);
          const Buffer poison = checker.output(size.m * size.n);
          const Buffer& c = accumulate ? before.device : poison;
          backend.gemm(shape, a.device.data(), b.device.data(), c.data());
          const std::string what = std::to_string(size.m) + " x " + std::to_string(size.n) + " x " +
                                   std::to_string(size.k) + (transpose_a ? " T" : " N") +
                                   (transpose_b ? "T" : "N") + (accumulate ? " added" : "");
          checker.compare("gemm", "c", what, reference::gemm(shape, a.values, b.values, before.values), c,
                          checker.limits().gemm);
        }
      }
    }
  }
  return checker.take();
}

std::vector<CheckResult> check_rows(Backend& backend, std::uint64_t seed) {
  Checker checker(backend, seed);
  for (const Rows& shape : {Rows{7, 64}, Rows{33, 896}, Rows{5, 1000}}) {
    check_rms_norm(checker, shape);
    check_swiglu(checker, shape);
    check_residual_add(checker, shape.rows * shape.columns);
    check_adam(checker, shape.rows * shape.columns);
    check_cross_entropy(checker, shape, 0);
    check_cross_entropy(checker, shape, 300);
  }
  for (const RopeShape& shape : {RopeShape{19, 3, 64}, RopeShape{8, 2, 128}}) check_rope(checker, shape);
  return checker.take();
}

std::vector<CheckResult> check_all(Backend& backend, std::uint64_t seed) {
  std::vector<CheckResult> all = check_attention(backend, seed);
  for (auto check : {check_gemm, check_rows}) {
    std::vector<CheckResult> more = check(backend, ++seed);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace equipoise::kernels
