#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/checks.h"
#include "kernels/random_inputs.h"
#include "tests/kernels/ring_check.h"

using namespace equipoise;
using namespace equipoise::kernels;

namespace {

void check_results(const std::vector<CheckResult>& results) {
  REQUIRE(!results.empty());
  for (const CheckResult& result : results) {
    CAPTURE(result.op);
    CAPTURE(result.tensor);
    CAPTURE(result.shape);
    CAPTURE(result.error);
    CHECK(result.passed());
  }
}

}  // namespace

TEST_CASE("cpu attention equals its float64 reference") {
  const auto backend = make_cpu_backend();
  for (const std::uint64_t seed : {1U, 2U, 3U}) check_results(check_attention(*backend, seed));
}

TEST_CASE("cpu attention in blocks of keys, joined, equals one call, and so do its gradients") {
  const auto backend = make_cpu_backend();
  check_results(check_ring_attention(*backend, 6));
}

TEST_CASE("joining with a side that saw no key takes the other side, and nothing stays nothing") {
  // Three rows of one head of 2: the first has seen nothing yet (its output may be anything, here NaN), the
  // second gets nothing, the third has nothing on either side.
  const auto backend = make_cpu_backend();
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const Buffer out = upload(*backend, std::vector<float>{kNaN, kNaN, 3, 4, 5, 6});
  const Buffer log_sum = upload_f32(*backend, std::vector<float>{kNone, 2, kNone});
  const Buffer part = upload(*backend, std::vector<float>{7, 8, kNaN, kNaN, kNaN, kNaN});
  const Buffer part_log_sum = upload_f32(*backend, std::vector<float>{1, kNone, kNone});
  backend->run(AttentionMerge{3, 1, 2, out.data(), log_sum.floats(), part.data(), part_log_sum.floats()});
  CHECK(download(*backend, out) == std::vector<float>{7, 8, 3, 4, 5, 6});
  CHECK(download_f32(*backend, log_sum) == std::vector<float>{1, 2, kNone});
}

TEST_CASE("a GEMM without rows or columns writes nothing") {
  const auto backend = make_cpu_backend();
  const std::vector<float> before(16, 3.0F);
  const Buffer a = upload(*backend, before);
  const Buffer c = upload(*backend, before);
  backend->gemm({0, 4, 4, false, false, false}, a.data(), a.data(), c.data());
  backend->gemm({4, 0, 4, true, true, false}, a.data(), a.data(), c.data());
  CHECK(download(*backend, c) == before);
}

TEST_CASE("row ops of no rows do nothing") {
  const auto backend = make_cpu_backend();
  backend->run(Embedding{{0, 8}, 0, 4, nullptr, nullptr, nullptr});
  backend->run(EmbeddingBackward{{0, 8}, 0, 4, nullptr, nullptr, nullptr});
  backend->run(AttentionMerge{});
  backend->run(RmsNorm{});
  backend->run(CrossEntropy{});
}

TEST_CASE("cpu GEMM equals its float64 reference in all eight forms") {
  const auto backend = make_cpu_backend();
  check_results(check_gemm(*backend, 4));
}

TEST_CASE("cpu row-wise ops equal their float64 references") {
  const auto backend = make_cpu_backend();
  check_results(check_rows(*backend, 5));
}

TEST_CASE("attention over one key returns that key's value") {
  // Softmax over a single key is 1, so the row is the value itself and log_sum the scaled score q.k /
  // sqrt(64): q = (2, 0, ...), k = (3, 0, ...) gives 6 / 8.
  const auto backend = make_cpu_backend();
  const AttentionShape shape{64, 1, 1};
  std::vector<float> q(64, 0.0F);
  std::vector<float> k(64, 0.0F);
  std::vector<float> v(64);
  q[0] = 2;
  k[0] = 3;
  for (std::size_t i = 0; i < 64; ++i) v[i] = static_cast<float>(i);
  const Buffer query = upload(*backend, q);
  const Buffer key = upload(*backend, k);
  const Buffer value = upload(*backend, v);
  const Buffer out = poisoned(*backend, 64);
  const Buffer log_sum = poisoned_f32(*backend, 1);
  const Piece piece{0, 1, 0, 1};
  const auto plan = backend->plan_attention(shape, {&piece, 1}, Pass::forward);
  backend->attention_forward(*plan, query.data(), key.data(), value.data(), out.data(), log_sum.floats());
  CHECK(download(*backend, out) == v);
  CHECK(log_sum.floats()[0] == doctest::Approx(0.75).epsilon(1e-6));
}

TEST_CASE("a document cut into context-parallel chunks gives the rows of the whole document") {
  const auto backend = make_cpu_backend();
  const AttentionShape shape{64, 4, 2};
  SplitMix64 random(11);
  constexpr std::int64_t kTokens = 300;
  const Buffer query = upload(*backend, random_values(kTokens * 4 * 64, 3.0F, random));
  const Buffer key = upload(*backend, random_values(kTokens * 2 * 64, 1.0F, random));
  const Buffer value = upload(*backend, random_values(kTokens * 2 * 64, 1.0F, random));
  const auto run = [&](const std::vector<Piece>& pieces) {
    const Buffer out = poisoned(*backend, kTokens * 4 * 64);
    const Buffer log_sum = poisoned_f32(*backend, kTokens * 4);
    const auto plan = backend->plan_attention(shape, pieces, Pass::forward);
    backend->attention_forward(*plan, query.data(), key.data(), value.data(), out.data(), log_sum.floats());
    return download(*backend, out);
  };
  const std::vector<float> whole = run({{0, kTokens, 0, kTokens}});
  const std::vector<float> chunks = run({{0, 70, 0, 70}, {70, 100, 0, 170}, {170, 130, 0, 300}});
  CHECK(relative_error(std::vector<double>(whole.begin(), whole.end()), chunks) < 1e-6);
}

TEST_CASE("attention refuses calls that have no meaning, and says why") {
  const auto backend = make_cpu_backend();
  const auto plan = [&](const AttentionShape& shape, const std::vector<Piece>& pieces) {
    return backend->plan_attention(shape, pieces, Pass::forward);
  };
  CHECK_THROWS_AS(plan({40, 1, 1}, {{0, 1, 0, 1}}), std::invalid_argument);
  CHECK_THROWS_AS(plan({64, 3, 2}, {{0, 1, 0, 1}}), std::invalid_argument);
  CHECK_THROWS_WITH(plan({64, 1, 1}, {{0, 5, 0, 4}}),
                    "attention: piece 0: 4 keys for 5 queries: the first queries would see nothing");
  CHECK_THROWS_WITH(plan({64, 1, 1}, {{0, 5, 0, 0, true}}), "attention: piece 0: 0 keys");
  CHECK(plan({64, 1, 1}, {{0, 5, 0, 4, true}}) != nullptr);
  CHECK_THROWS_WITH(plan({64, 1, 1}, {{0, 5, 0, 5}, {4, 2, 5, 2}}),
                    "attention: query row 4 is in two pieces");
}

TEST_CASE("two vocabulary shards give the loss and the gradient of the whole vocabulary") {
  const auto backend = make_cpu_backend();
  SplitMix64 random(3);
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kVocabulary = 50;
  const std::vector<float> logits = random_values(kRows * kVocabulary, 4.0F, random);
  const std::vector<std::int32_t> targets{0, 19, 20, 21, 49, 7};
  const Buffer device_targets = upload_integers(*backend, targets);
  const auto loss_of = [&](std::int64_t first, std::int64_t columns, std::vector<float>& log_sum) {
    std::vector<float> part;
    for (std::int64_t r = 0; r < kRows; ++r) {
      part.insert(part.end(), logits.begin() + r * kVocabulary + first,
                  logits.begin() + r * kVocabulary + first + columns);
    }
    const Buffer device = upload(*backend, part);
    const Buffer sums = poisoned_f32(*backend, kRows);
    const Buffer target = poisoned_f32(*backend, kRows);
    backend->run(CrossEntropy{
        {kRows, columns}, first, device.data(), device_targets.integers(), sums.floats(), target.floats()});
    log_sum = download_f32(*backend, sums);
    return download_f32(*backend, target);
  };
  std::vector<float> whole, left, right;
  const auto target_whole = loss_of(0, kVocabulary, whole);
  const auto target_left = loss_of(0, 20, left);
  const auto target_right = loss_of(20, 30, right);
  for (std::size_t r = 0; r < kRows; ++r) {
    CHECK(std::log(std::exp(left[r]) + std::exp(right[r])) == doctest::Approx(whole[r]).epsilon(1e-6));
    CHECK(target_left[r] + target_right[r] == target_whole[r]);
  }
}
