// Stable orders by document length, the first act of most packers: radix sort on digits of up to 11 bits,
// O(n) for lengths below 2^32, three passes at most and fewer for short documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace equipoise {

// Indices of `lengths`, longest first; equal lengths keep their order. Lengths are below 2^32.
std::vector<std::uint32_t> longest_first(std::span<const std::int64_t> lengths);

// Indices of `lengths`, shortest first; equal lengths keep their order.
std::vector<std::uint32_t> shortest_first(std::span<const std::int64_t> lengths);

// Indices of `weights`, largest first; equal weights keep their order. O(n log n).
std::vector<std::uint32_t> heaviest_first(std::span<const double> weights);

}  // namespace equipoise
