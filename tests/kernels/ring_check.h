// A checker as those of kernels/checks.h, of attention in blocks of keys that are joined afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/checks.h"

namespace equipoise::kernels {

std::vector<CheckResult> check_ring_attention(Backend& backend, std::uint64_t seed);

}  // namespace equipoise::kernels
