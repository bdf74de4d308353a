#include "policies/least_loaded.h"

#include <array>
#include <cassert>
#include <utility>

#include "policies/base/index.h"

namespace equipoise {

constexpr unsigned kMostDigitBits = 11;
// With fewer items a comparison sort is faster than clearing the counters.
constexpr std::size_t kSmall = 512;

// Sorts items by their key. `bits` are set where two keys differ; digits without such a bit are skipped, and
// all passes have digits of similar width, so that the number of counters stays small. Items of equal key
// keep their order.
template <class Item, class Key>
static void radix_sort(std::vector<Item>& items, std::uint64_t bits, Key key) {
  std::vector<Item> other(items.size());
  std::array<std::uint32_t, std::size_t{1} << kMostDigitBits> begin;
  while (bits != 0) {
    const auto low = static_cast<unsigned>(std::countr_zero(bits));
    const auto left = static_cast<unsigned>(std::bit_width(bits)) - low;
    const unsigned passes = (left + kMostDigitBits - 1) / kMostDigitBits;
    const unsigned width = (left + passes - 1) / passes;
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    const std::span<std::uint32_t> digits(begin.data(), mask + 1);
    std::ranges::fill(digits, 0);
    for (const Item& item : items) ++digits[(key(item) >> low) & mask];
    std::uint32_t sum = 0;
    for (std::uint32_t& count : digits) sum += std::exchange(count, sum);
    for (const Item& item : items) other[digits[(key(item) >> low) & mask]++] = item;
    items.swap(other);
    bits &= ~(mask << low);
  }
}

static std::vector<std::uint32_t> order_by(std::span<const std::int64_t> lengths, bool descending) {
  assert(lengths.size() < (std::size_t{1} << 32));
  std::uint64_t largest = 0;
  for (const std::int64_t length : lengths) {
    assert(length >= 0 && length < (std::int64_t{1} << 32));
    largest = std::max(largest, static_cast<std::uint64_t>(length));
  }
  std::vector<std::uint64_t> keys(lengths.size());  // key << 32 | index
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<std::uint64_t>(lengths[i]);
    keys[i] = (descending ? largest - length : length) << 32 | i;
  }
  if (keys.size() < kSmall)
    std::sort(keys.begin(), keys.end());
  else
    radix_sort(keys, std::bit_ceil(largest + 1) - 1, [](std::uint64_t k) { return k >> 32; });
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
  struct Weighed {
    std::uint64_t key;
    std::uint32_t index;
  };
  // The bits of a double rise with its size. Those of a negative one fall, and both zeros are equal.
  const auto falling = [](double weight) {
    constexpr std::uint64_t kNegative = std::uint64_t{1} << 63;
    const auto bits = std::bit_cast<std::uint64_t>(weight + 0.0);
    return (bits & kNegative) != 0 ? bits : ~bits & ~kNegative;
  };
  std::vector<Weighed> items(weights.size());
  std::uint64_t differing = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    items[i] = {falling(weights[i]), static_cast<std::uint32_t>(i)};
    differing |= items[i].key ^ items[0].key;
  }
  if (items.size() < kSmall)
    std::ranges::sort(items, {}, [](const Weighed& w) { return std::pair(w.key, w.index); });
  else
    radix_sort(items, differing, [](const Weighed& w) { return w.key; });
  return each_of(items, &Weighed::index);
}

}  // namespace equipoise
