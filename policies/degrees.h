// The CP degrees from which a policy that chooses them (Policy::chooses_degrees) may take its own.
#pragma once

#include <vector>

#include "policies/options.h"

namespace equipoise {

// `of_heads` are the rising degrees that can share the model's heads; empty: all can.
void offer_degrees(std::vector<int> of_heads, PackOptions& options);

}  // namespace equipoise
