#include "sim/validation/noise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace equipoise {
namespace {

// The k of the interval, from 1; 1 also where even the whole range covers less than 95%.
std::size_t order_of_interval(std::size_t count) {
  const auto n = static_cast<double>(count);
  double term = std::exp2(-n), below = term;  // P(Binomial = 0), P(Binomial < 1)
  std::size_t k = 1;
  for (; k < count; ++k) {
    const auto i = static_cast<double>(k);
    term *= (n - i + 1) / i;
    below += term;
    if (!(below <= 0.025)) break;
  }
  return k;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<double> median_noise(std::vector<double> values) {
  if (values.size() < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  // exp2(-n) is 0 beyond the doubles: there the normal approximation is exact enough.
  constexpr std::size_t kMostCounted = 1000;
  const auto n = static_cast<double>(values.size());
  const std::size_t k = values.size() <= kMostCounted ? order_of_interval(values.size())
                                                      : static_cast<std::size_t>(n / 2 - 0.98 * std::sqrt(n));
  return (values[values.size() - k] - values[k - 1]) / 2;
}

}  // namespace equipoise
