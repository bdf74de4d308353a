// What ranks hold of a micro-batch, as needed by local ops.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/disaggregation.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/cost_basis.h"

namespace equipoise {

// Tokens of a rank, and the number of their documents. The number counts if each document has kernels of its
// own (RowOpCosts::rotary); elsewhere it is 1.
struct Held {
  std::int64_t tokens = 0, documents = 1;
  friend bool operator==(const Held&, const Held&) = default;
};
using HeldByHalf = std::array<Held, kMostNanoBatches>;

// By rank and nano-batch; a single nano-batch has all of it.
void count_held(const CostBasis& basis, const MicroBatch& micro_batch, const Sharding& sharding,
                std::vector<HeldByHalf>& out);

}  // namespace equipoise
