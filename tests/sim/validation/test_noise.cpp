#include <doctest/doctest.h>

#include <cmath>

#include "sim/validation/figures.h"

using namespace equipoise;

namespace {

std::vector<double> count_to(int n) {
  std::vector<double> values;
  for (int i = n; i >= 1; --i) values.push_back(i);
  return values;
}

}  // namespace

TEST_CASE("Medians") {
  CHECK(median({}) == 0);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
}

TEST_CASE("The noise of a median is half its 95% interval by order statistics") {
  CHECK(!median_noise({}));
  CHECK(!median_noise({1}));
  // Up to 5 values even the whole range covers 1 - 2 / 32 = 93.75%: half the range.
  CHECK(*median_noise({1, 3}) == 1);
  CHECK(*median_noise(count_to(5)) == 2);
  // 6: 1 - 2 / 64 = 96.9%, and from the second to the fifth only 1 - 14 / 64.
  CHECK(*median_noise(count_to(6)) == 2.5);
  // 9: P(Binomial <= 1) = 10 / 512 = 1.95%, P(<= 2) = 46 / 512: from the 2nd to the 8th, 3.
  CHECK(*median_noise(count_to(9)) == 3);
  // 20: P(<= 5) = 2.07%, P(<= 6) = 5.8%: from the 6th to the 15th.
  CHECK(*median_noise(count_to(20)) == 4.5);
  // With many, it is 0.98 sqrt(n) places to either side.
  CHECK(std::abs(*median_noise(count_to(10000)) - 98) <= 1);
  CHECK(std::abs(*median_noise(count_to(1000)) - 0.98 * std::sqrt(1000)) <= 1);
}
