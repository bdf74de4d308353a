#include "policies/least_loaded.h"

#include <array>
#include <cassert>
#include <utility>

#include "policies/base/index.h"

namespace equipoise {

constexpr unsigned kMostDigitBits = 11;
// With fewer documents a comparison sort is faster than clearing the counters.
constexpr std::size_t kSmall = 512;

// Sorts `keys` (key << 32 | index) by key. Equal keys keep their order, since indices are rising already. All
// passes have digits of similar width, so that the number of counters stays small.
static void radix_sort(std::vector<std::uint64_t>& keys, std::uint64_t largest_key) {
  const auto bits = static_cast<unsigned>(std::bit_width(largest_key));
  const unsigned passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  std::vector<std::uint64_t> other(keys.size());
  std::array<std::uint32_t, std::size_t{1} << kMostDigitBits> begin;
  for (unsigned pass = 0, shift = 32; pass < passes; ++pass) {
    const unsigned width = (bits + 32 - shift + passes - pass - 1) / (passes - pass);
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    const std::span<std::uint32_t> digits(begin.data(), mask + 1);
    std::ranges::fill(digits, 0);
    for (const std::uint64_t key : keys) ++digits[(key >> shift) & mask];
    std::uint32_t sum = 0;
    for (std::uint32_t& count : digits) sum += std::exchange(count, sum);
    for (const std::uint64_t key : keys) other[digits[(key >> shift) & mask]++] = key;
    keys.swap(other);
    shift += width;
  }
}

static std::vector<std::uint32_t> order_by(std::span<const std::int64_t> lengths, bool descending) {
  assert(lengths.size() < (std::size_t{1} << 32));
  std::uint64_t largest = 0;
  for (const std::int64_t length : lengths) {
    assert(length >= 0 && length < (std::int64_t{1} << 32));
    largest = std::max(largest, static_cast<std::uint64_t>(length));
  }
  std::vector<std::uint64_t> keys(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<std::uint64_t>(lengths[i]);
    keys[i] = (descending ? largest - length : length) << 32 | i;
  }
  if (keys.size() < kSmall)
    std::sort(keys.begin(), keys.end());
  else
    radix_sort(keys, largest);
  std::vector<std::uint32_t> order(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) order[i] = static_cast<std::uint32_t>(keys[i]);
  return order;
}

std::vector<std::uint32_t> longest_first(std::span<const std::int64_t> lengths) {
  return order_by(lengths, true);
}

std::vector<std::uint32_t> shortest_first(std::span<const std::int64_t> lengths) {
  return order_by(lengths, false);
}

std::vector<std::uint32_t> heaviest_first(std::span<const double> weights) {
  std::vector<std::uint32_t> order = positions<std::uint32_t>(weights.size());
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::uint32_t i) { return weights[i]; });
  return order;
}

}  // namespace equipoise
