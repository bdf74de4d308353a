#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/traces/scratch.h"
#include "traces/synth.h"

using equipoise::synthesize;
using equipoise::test::error_of;

namespace {

constexpr std::int64_t kDocuments = 400000;
constexpr double kK = 1024;

struct Bucket {
  double tokens;   // K
  double percent;  // of the documents are shorter
};

// The published percentages, as printed; the sample may differ by 5 standard errors.
void check_table(const char* name, const std::vector<Bucket>& table, double longest) {
  CAPTURE(name);
  std::vector<std::int64_t> lengths = synthesize(name, kDocuments, 11).lengths;
  std::sort(lengths.begin(), lengths.end());
  CHECK(static_cast<double>(lengths.back()) <= longest * kK);
  CHECK(lengths.front() >= 1);
  for (const Bucket& bucket : table) {
    const auto below =
        std::lower_bound(lengths.begin(), lengths.end(), static_cast<std::int64_t>(bucket.tokens * kK));
    const double share = static_cast<double>(below - lengths.begin()) / static_cast<double>(kDocuments);
    const double published = bucket.percent / 100;
    const double error = 5 * std::sqrt(published * (1 - published) / static_cast<double>(kDocuments));
    CAPTURE(bucket.tokens);
    CHECK(std::abs(share - published) <= error);
  }
}

}  // namespace

TEST_CASE("distributions have the bucket shares that their papers print") {
  check_table("lmsys-chat-1m", {{1, 90.499}, {4, 99.539}, {8, 99.908}, {32, 99.987}, {128, 99.996}}, 303);
  check_table("wikipedia", {{1, 87.88}, {4, 99.34}, {8, 99.92}, {32, 99.99}}, 78);
  check_table("chatqa2-long-sft", {{1, 21.92}, {4, 31.48}, {8, 40.43}, {32, 99.86}}, 99);
  check_table("chunkflow-eval", {{1, 98.17}, {4, 99.72}, {8, 99.83}, {32, 99.92}, {128, 99.98}}, 256);
}

TEST_CASE("chunkflow-eval: below 1K, of which the paper says nothing, a conversation's lengths") {
  std::vector<std::int64_t> lengths = synthesize("chunkflow-eval", kDocuments, 3).lengths;
  std::ranges::sort(lengths);
  const auto end_of_short = std::ranges::lower_bound(lengths, 1024);
  const auto middle = (end_of_short - lengths.begin()) / 2;
  CHECK(static_cast<double>(lengths[static_cast<std::size_t>(middle)]) == doctest::Approx(250).epsilon(0.02));
  const double tokens = std::accumulate(lengths.begin(), end_of_short, 0.0);
  CHECK(tokens / static_cast<double>(end_of_short - lengths.begin()) == doctest::Approx(330).epsilon(0.05));
}

TEST_CASE("llama3-sft: 0.11 % of the documents average about 37K, the others less than 1K") {
  double short_tokens = 0;
  double long_tokens = 0;
  double long_ones = 0;
  for (const std::int64_t length : synthesize("llama3-sft", kDocuments, 5).lengths) {
    const bool is_long = length > 8 * 1024;
    (is_long ? long_tokens : short_tokens) += static_cast<double>(length);
    long_ones += is_long ? 1 : 0;
  }
  CHECK(long_ones / static_cast<double>(kDocuments) == doctest::Approx(0.0011).epsilon(0.25));
  CHECK(long_tokens / long_ones == doctest::Approx(37 * kK).epsilon(0.1));
  CHECK(short_tokens / (static_cast<double>(kDocuments) - long_ones) < 1000);
}

TEST_CASE("a name, a count and a seed make one trace; a longer one begins with it") {
  for (const equipoise::Distribution& about : equipoise::distributions()) {
    const std::string name(about.name);
    CAPTURE(name);
    const auto first = synthesize(name, 1000, 3).lengths;
    CHECK(first == synthesize(name, 1000, 3).lengths);
    CHECK(first != synthesize(name, 1000, 4).lengths);
    auto longer = synthesize(name, 2000, 3).lengths;
    longer.resize(1000);
    CHECK(first == longer);
    CHECK_FALSE(about.source.empty());
    CHECK_FALSE(about.assumption.empty());
  }
}

TEST_CASE("unknown distributions and empty traces are refused") {
  CHECK(error_of([] { synthesize("lmsys-chat", 10, 0); }).find("did you mean \"lmsys-chat-1m\"?") !=
        std::string::npos);
  CHECK(error_of([] { synthesize("wikipedia", 0, 0); }).find("expected 1 to 268435456") != std::string::npos);
}

TEST_CASE("the normal quantile inverts the normal distribution") {
  // P(Z < z) = erfc(-z / sqrt(2)) / 2.
  for (double z = -8; z <= 8; z += 0.01) {
    const double share = std::erfc(-z / std::sqrt(2.0)) / 2;
    if (share <= 0 || share > 1 - 1e-12) continue;  // 1 - share has lost its digits there
    CHECK(equipoise::normal_quantile(share) == doctest::Approx(z).epsilon(1e-6));
  }
}
