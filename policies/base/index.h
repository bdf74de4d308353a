// Ranks, stages, lanes and micro-batches are signed numbers, kinds are enums; containers are indexed without
// a sign.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <type_traits>

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

}  // namespace equipoise
