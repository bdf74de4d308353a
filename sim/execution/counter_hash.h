// Random numbers without a state: value `counter` of stream `key`, in any order, on any rank. It is
// SplitMix64's output function, applied to key and counter one after the other.
#pragma once

#include <cstdint>

#include "policies/base/random.h"

namespace equipoise::execution {

inline std::uint64_t counter_hash(std::uint64_t key, std::uint64_t counter) {
  return SplitMix64(SplitMix64(key).next() + counter * 0x9e3779b97f4a7c15ULL).next();
}

}  // namespace equipoise::execution
