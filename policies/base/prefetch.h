// Visiting values in an order that is anywhere in memory: who asks for the one some places on early does not
// wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace equipoise {

// At place k of the order: has the value of a later place fetched.
template <class T>
void fetch_ahead(std::span<const T> values, std::span<const std::uint32_t> order, std::size_t k) {
  constexpr std::size_t kAhead = 16;
  if (k + kAhead < order.size()) __builtin_prefetch(&values[order[k + kAhead]]);
}

}  // namespace equipoise
