// Ranks, stages, lanes and micro-batches are signed numbers; containers are indexed without a sign.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>

namespace equipoise {

// `number` as the index of a container; it must not be negative.
constexpr std::size_t at(std::integral auto number) {
  assert(number >= 0);
  return static_cast<std::size_t>(number);
}

}  // namespace equipoise
