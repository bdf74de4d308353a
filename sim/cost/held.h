// What ranks hold of a micro-batch, as far as local ops depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/disaggregation.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/cost_basis.h"

namespace equipoise {

// Tokens of a rank, and the number of their documents, which counts where each has kernels of its own
// (RowOpCosts::rotary): 1 elsewhere.
struct Held {
  std::int64_t tokens = 0, documents = 1;
  friend bool operator==(const Held&, const Held&) = default;
};
using HeldByHalf = std::array<Held, kMostNanoBatches>;

// By rank and nano-batch: all of it in the first where there is only one.
void count_held(const CostBasis& basis, const MicroBatch& micro_batch, const Sharding& sharding,
                std::vector<HeldByHalf>& out);

}  // namespace equipoise
