#include "kernels/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace equipoise::kernels {
namespace {

struct AttentionCase {
  const char* what;
  std::vector<Piece> pieces;
  AttentionRows rows = {};
};

// Lists documents packed end to end.
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
          // The first and last chunks of rank 0 of 2, under per-document sharding of documents of 200 and 93
          // tokens.
          {"context-parallel chunks that share keys",
           {{0, 50, 0, 50}, {50, 50, 0, 200}, {100, 24, 200, 24}, {124, 23, 200, 93}}},
          {"one full block of fewer keys than queries", {{0, 150, 0, 70, true}}},
          // A step of ring attention: own keys in a causal piece, others' in full ones, with shared keys.
          {"causal and full pieces",
           {{0, 70, 0, 70}, {70, 90, 0, 33, true}, {160, 5, 33, 200, true}, {165, 20, 40, 66}}},
          {"rows that no piece reaches", {{7, 30, 3, 33}, {40, 2, 0, 3, true}}, {50, 60}},
          {"no piece", {}, {6, 4}}};
}

std::string describe(const AttentionShape& shape, const char* what) {
  return concatenated(shape.query_heads, "/", shape.kv_heads, " heads of ", shape.head_dim, ", ", what);
}

Buffer zeros(Backend& backend, std::int64_t count) {
  return upload(backend, std::vector<float>(static_cast<std::size_t>(count), 0.0F));
}

Buffer zeros_f32(Backend& backend, std::int64_t count) {
  return upload_f32(backend, std::vector<float>(static_cast<std::size_t>(count), 0.0F));
}

void check_attention_case(Checker& checker, const AttentionShape& shape, const AttentionCase& one) {
  const std::string what = describe(shape, one.what);
  const std::int64_t query_rows = std::max(one.rows.query, query_rows_of(one.pieces));
  const std::int64_t query_count = query_rows * shape.query_heads * shape.head_dim;
  const std::int64_t key_rows = std::max(one.rows.key, key_rows_of(one.pieces));
  const std::int64_t key_count = key_rows * shape.kv_heads * shape.head_dim;
  Backend& backend = checker.backend();
  const Input query = checker.input(query_count, 4.0F);  // scores of a few units, so the softmax is not flat
  const Input key = checker.input(key_count);
  const Input value = checker.input(key_count);
  const Input out_gradient = checker.input(query_count);
  // Zeros are expected where some rows stay unwritten.
  const bool gaps = one.rows.query > 0;
  const Buffer out = gaps ? zeros(backend, query_count) : checker.output(query_count);
  const std::int64_t sums = query_count / shape.head_dim;
  const Buffer log_sum = gaps ? zeros_f32(backend, sums) : checker.statistics(sums);
  const auto forward = backend.plan_attention(shape, one.pieces, Pass::forward, one.rows);
  backend.attention_forward(*forward, query.device.data(), key.device.data(), value.device.data(), out.data(),
                            log_sum.floats());
  const auto expected = reference::attention(shape, one.pieces, query.values, key.values, value.values);
  checker.compare("attention_forward", "out", what, expected.out, out, checker.limits().attention_forward);
  checker.compare_f32("attention_forward", "log_sum", what, expected.log_sum, log_sum);

  const Buffer dq = checker.output(query_count);
  const Buffer dk = checker.output(key_count);
  const Buffer dv = checker.output(key_count);
  const auto backward = backend.plan_attention(shape, one.pieces, Pass::backward, one.rows);
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
                                      AttentionShape{64, 8, 1}, AttentionShape{128, 8, 2}})
    for (const AttentionCase& one : attention_cases()) check_attention_case(checker, shape, one);
  return checker.take();
}

std::vector<CheckResult> check_gemm(Backend& backend, std::uint64_t seed) {
  Checker checker(backend, seed);
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& size :
       {Size{64, 64, 64}, Size{8, 200, 72}, Size{136, 40, 520}, Size{256, 384, 128}, Size{24, 40, 0}}) {
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
          const std::string what =
              concatenated(size.m, " x ", size.n, " x ", size.k, transpose_a ? " T" : " N",
                           transpose_b ? "T" : "N", accumulate ? " added" : "");
          checker.compare("gemm", "c", what, reference::gemm(shape, a.values, b.values, before.values), c,
                          checker.limits().gemm);
        }
      }
    }
  }
  return checker.take();
}

namespace {

// Every rank can make every rank's data, so that the reference needs no communication.
std::vector<float> data_of(int rank, std::int64_t count, std::uint64_t seed) {
  SplitMix64 random(seed * 1000003 + static_cast<std::uint64_t>(rank));
  return random_values(count, 1.0F, random);
}

std::vector<float> poison(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

class CollectiveChecker {
 public:
  CollectiveChecker(Communicator& group, std::int64_t count, std::uint64_t seed)
      : group_(group), count_(count), ranks_(group.size()) {
    for (int r = 0; r < ranks_; ++r) data_.push_back(data_of(r, count * ranks_, seed));
  }

  void all_gather() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_gather(mine().data(), got.data(), count_);
    std::vector<double> expected;
    for (int r = 0; r < ranks_; ++r) append(expected, r, 0);
    compare("all_gather", expected, got);
  }

  void reduce_scatter() {
    std::vector<float> got = poison(count_);
    group_.reduce_scatter(mine().data(), got.data(), count_);
    compare("reduce_scatter", sum(group_.rank() * count_, count_), got);
  }

  void all_reduce() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_reduce(mine().data(), got.data(), count_ * ranks_);
    compare("all_reduce", sum(0, count_ * ranks_), got);
  }

  void all_to_all() {
    std::vector<float> got = poison(count_ * ranks_);
    group_.all_to_all(mine().data(), got.data(), count_);
    std::vector<double> expected;
    for (int r = 0; r < ranks_; ++r) append(expected, r, group_.rank() * count_);
    compare("all_to_all", expected, got);
  }

  void ring() {
    const int next = (group_.rank() + 1) % ranks_;
    const int previous = (group_.rank() + ranks_ - 1) % ranks_;
    std::vector<float> got = poison(count_);
    group_.send_receive(mine().data(), next, got.data(), previous, count_);
    std::vector<double> expected;
    append(expected, previous, 0);
    compare("send_receive", expected, got);
  }

  // Even ranks send to the odd rank after them, by separate send and receive.
  void pairs() {
    const int rank = group_.rank();
    if (rank % 2 == 0) {
      if (rank + 1 < ranks_) group_.send(mine().data(), count_, rank + 1);
      return;
    }
    std::vector<float> got = poison(count_);
    group_.receive(got.data(), count_, rank - 1);
    std::vector<double> expected;
    append(expected, rank - 1, 0);
    compare("send", expected, got);
  }

  // Every rank sends three messages to the next one, which receives the last one first, as pipelines do.
  // Message i omits its last i elements, so that messages differ in length.
  void messages() {
    const int next = (group_.rank() + 1) % ranks_;
    const int previous = (group_.rank() + ranks_ - 1) % ranks_;
    constexpr int kMessages = 3;
    const auto length = [&](int i) { return count_ - std::min<std::int64_t>(i, count_ - 1); };
    std::vector<std::unique_ptr<Pending>> sent;
    for (int i = 0; i < kMessages; ++i)
      sent.push_back(group_.start_send(mine().data() + part(i), length(i), next, 7 * i));
    for (int i = kMessages - 1; i >= 0; --i) {
      std::vector<float> got = poison(length(i));
      group_.receive(got.data(), length(i), previous, 7 * i);
      const auto first = data_[static_cast<std::size_t>(previous)].begin() + part(i);
      compare("start_send", {first, first + length(i)}, got);
    }
    for (const auto& message : sent) message->wait();
  }

  std::vector<CheckResult> take() { return std::move(results_); }

 private:
  // Where the data of a message begins.
  [[nodiscard]] std::int64_t part(int message) const { return message % ranks_ * count_; }

  [[nodiscard]] const std::vector<float>& mine() const {
    return data_[static_cast<std::size_t>(group_.rank())];
  }

  void append(std::vector<double>& to, int rank, std::int64_t begin) const {
    const auto first = data_[static_cast<std::size_t>(rank)].begin() + begin;
    to.insert(to.end(), first, first + count_);
  }

  [[nodiscard]] std::vector<double> sum(std::int64_t begin, std::int64_t count) const {
    std::vector<double> total(static_cast<std::size_t>(count), 0.0);
    for (const std::vector<float>& data : data_)
      for (std::int64_t i = 0; i < count; ++i)
        total[static_cast<std::size_t>(i)] += static_cast<double>(data[static_cast<std::size_t>(begin + i)]);
    return total;
  }

  void compare(const char* op, const std::vector<double>& expected, const std::vector<float>& got) {
    const std::string shape = concatenated(ranks_, " ranks, ", count_, " elements");
    results_.push_back({op, "received", shape, relative_error(expected, got), 1e-6});
  }

  Communicator& group_;
  std::int64_t count_;
  int ranks_;
  std::vector<std::vector<float>> data_;
  std::vector<CheckResult> results_;
};

}  // namespace

std::vector<CheckResult> check_collectives(Communicator& communicator, std::uint64_t seed) {
  std::vector<CheckResult> all;
  for (const std::int64_t count : {1, 37, 4096}) {
    CollectiveChecker checker(communicator, count, seed);
    checker.all_gather();
    checker.reduce_scatter();
    checker.all_reduce();
    checker.all_to_all();
    checker.ring();
    checker.pairs();
    checker.messages();
    std::vector<CheckResult> more = checker.take();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace equipoise::kernels
