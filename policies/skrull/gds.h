// Skrull's packing policies (arXiv 2505.19609), which differ in how documents are placed inside a
// micro-batch.
#pragma once

#include "policies/parameter.h"
#include "policies/policy.h"
#include "policies/shared_parameters.h"

namespace equipoise {

// PackOptions::bucket_size of 0 is refused.
inline constexpr PackParameter kSkrull[] = {kBucketSize, kRollback};

enum class PlacementOrder { as_grouped, arrival };  // of a micro-batch's documents
inline constexpr std::string_view kPlacementOrderNames[] = {"as-grouped", "arrival"};
struct RoundRobinOptions {
  PlacementOrder placement_order = PlacementOrder::as_grouped;
};
inline constexpr PackParameter kRoundRobin[] = {parameter::choice<&RoundRobinOptions::placement_order>(
    "placement_order", kPlacementOrderNames,
    "documents of a micro-batch as gds grouped them (ascending) or as they arrived")};

Plan plan_gds(const PackingProblem& problem);          // micro-batches only
Plan plan_skrull(const PackingProblem& problem);       // + DACP placements
Plan plan_round_robin(const PackingProblem& problem);  // + round-robin placements, the ablation

// A micro-batch holds fewer than C*N tokens, so a document does too; without roll-back nothing is refused.
std::int64_t skrull_hard_limit(const PackOptions& options);
// C*N, 0 where no bucket is given.
std::int64_t skrull_micro_batch_tokens(const PackOptions& options);
// The bucket that a document needs: fewer than C*N tokens.
Room room_by_bucket(const PackOptions& options, std::int64_t tokens);

}  // namespace equipoise
