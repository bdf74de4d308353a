// The placement rule of fixed-greedy as a bare function; fixed-solver starts from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace equipoise {

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// Bin of each document, or kNowhere: each to the bin with the least sum of len^2 that has room, ties to the
// lowest. `lengths` come longest first.
std::vector<std::size_t> place_by_attention(std::span<const std::int64_t> lengths, std::size_t bins,
                                            std::int64_t capacity);

}  // namespace equipoise
