// Fixed-length packing (WLB-LLM 4.1), and its placement rule as a function, from which fixed-solver starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

struct FixedLengthOptions {
  std::int64_t pack_window = 1;
};
inline constexpr PackParameter kPackWindow = parameter::integer<&FixedLengthOptions::pack_window>(
    "pack_window", 1, 1 << 20, "global batches packed together");

// A bin is micro_batch_size windows, which gives the window that a document needs.
Room room_by_window(const PackOptions& options, std::int64_t tokens);

Plan plan_fixed_greedy(const PackingProblem& problem);

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// The bin of each document, or kNowhere. A document goes to the bin with room that has the least sum of
// len^2, ties to the lowest. `lengths` come longest first.
std::vector<std::size_t> place_by_attention(std::span<const std::int64_t> lengths, std::size_t bins,
                                            std::int64_t capacity);

}  // namespace equipoise
