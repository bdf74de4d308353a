// The largest differencing method as a bare function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace equipoise {

// Positions of `weights` in k parts of nearly equal sums, the part with the largest sum first, positions
// rising inside a part. `equal_size`: parts differ by at most one in how many they hold.
std::vector<std::vector<std::uint32_t>> karmarkar_karp(std::span<const double> weights, std::size_t k,
                                                       bool equal_size);

}  // namespace equipoise
