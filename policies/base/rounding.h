// Counts in whole multiples, such as a lane's rounds of micro-batches and the chunks of a document on CP
// ranks.
#pragma once

#include <concepts>
#include <type_traits>

namespace equipoise {

template <std::integral Number>
constexpr Number rounded_up(Number count, std::type_identity_t<Number> multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace equipoise
