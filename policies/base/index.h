// Helpers for containers: indices, sums, one member of each item, and orders. Ranks, stages, lanes and
// micro-batches are signed numbers and kinds are enums, but containers are indexed with unsigned numbers.
#pragma once

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <type_traits>
#include <vector>

namespace equipoise {

// `number` as the index of a container; it must not be negative.
template <class Number>
requires std::is_integral_v<Number> || std::is_enum_v<Number>
constexpr std::size_t at(Number number) {
  if constexpr (std::is_signed_v<Number>) assert(number >= 0);
  return static_cast<std::size_t>(number);
}

constexpr double as_double(std::integral auto number) {
  return static_cast<double>(number);
}

// The sum of the items in their order, or of `of` (a member or a function) applied to each.
template <class Items, class Of = std::identity>
auto sum_of(const Items& items, const Of& of = {}) {
  std::decay_t<decltype(std::invoke(of, *std::begin(items)))> sum{};
  for (const auto& item : items) sum += std::invoke(of, item);
  return sum;
}

// The values of `of` (a member or a function) for all items.
template <class Items, class Of>
auto each_of(const Items& items, const Of& of) {
  std::vector<std::decay_t<decltype(std::invoke(of, *std::begin(items)))>> all;
  all.reserve(std::size(items));
  for (const auto& item : items) all.push_back(std::invoke(of, item));
  return all;
}

template <std::integral Number = std::size_t>
std::vector<Number> positions(std::size_t count) {
  std::vector<Number> all(count);
  std::iota(all.begin(), all.end(), Number{0});
  return all;
}
// Those numbers, sorted by rising `key`. Numbers of equal key keep their order.
template <std::integral Number = std::size_t, class Key>
std::vector<Number> positions_by(std::size_t count, const Key& key) {
  std::vector<Number> order = positions<Number>(count);
  std::ranges::stable_sort(order, {}, key);
  return order;
}

}  // namespace equipoise
