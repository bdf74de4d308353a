// HBP's baseline packer: shuffle, next-fit, keep full packs, and again with the rest.
#pragma once

#include "policies/parameter.h"
#include "policies/policy.h"

namespace equipoise {

struct IsfOptions {
  int rounds = 10;
  std::int64_t threshold = -1;  // least tokens of a pack that is kept; -1: pack length - 128
};
inline constexpr PackParameter kIsf[] = {
    parameter::integer<&IsfOptions::rounds>("rounds", 1, 1000, "rounds"),
    parameter::integer<&IsfOptions::threshold>(
        "threshold", 0, kLongestSize, "least tokens of a pack that is kept; pack length - 128 by default")};

Plan plan_isf(const PackingProblem& problem);

}  // namespace equipoise
