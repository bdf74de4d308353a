// Karmarkar and Karp's largest differencing method, as a policy and as a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

struct KarmarkarKarpOptions {
  bool equal_size = false;
};
inline constexpr PackParameter kKarmarkarKarp[] = {
    parameter::flag<&KarmarkarKarpOptions::equal_size>("equal_size", "parts of equal size")};

Plan plan_karmarkar_karp(const PackingProblem& problem);

// The indices of `weights` in k parts of nearly equal sums. The part with the largest sum comes first, and
// indices rise inside a part. `equal_size`: parts differ by at most one in size.
std::vector<std::vector<std::uint32_t>> karmarkar_karp(std::span<const double> weights, std::size_t k,
                                                       bool equal_size);

}  // namespace equipoise
