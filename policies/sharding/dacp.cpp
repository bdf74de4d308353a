// DACP as a sharding rule (Skrull Algorithm 1, see policies/packing/skrull.cpp). For every document of the
// micro-batch, ascending by length, it decides whether the document stays whole on one rank or is
// distributed; distributed documents are then sharded per document. A micro-batch with placements (of skrull
// or round-robin) keeps them. A dependent chunk is always distributed, since the keys of the chunks before it
// lie on all ranks and no rank could attend before the exchange. Where no placement meets the budget,
// everything is distributed, which gives each rank the fewest tokens, and `fits` is false: the caller reports
// it as out of memory. Cost: O(n log n + n * c) for n documents.
#include <algorithm>
#include <numeric>
#include <vector>

#include "policies/base/error.h"
#include "policies/packing/skrull.h"
#include "policies/sharding/rules.h"

namespace equipoise {
namespace {

std::vector<int> decide_placement(const sharding::View& view, const ShardOptions& options) {
  if (options.bucket_size <= 0) throw UserError("dacp: no bucket size given; allowed: --bucket-size > 0");
  if (options.workload == nullptr)
    throw UserError("dacp: no document cost given; allowed: --cost or --model");
  std::vector<std::size_t> order(view.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return view.tokens(i); });
  std::vector<std::int64_t> tokens;
  for (const std::size_t i : order) tokens.push_back(view.tokens(i));
  std::vector<double> cost(tokens.size());
  options.workload->of(tokens, cost);

  const skrull::Placement placed =
      skrull::place_dacp({tokens, cost, view.ranks(), options.bucket_size, options.rollback});
  std::vector<int> placement(view.size(), kDistributed);
  if (!placed.failed)
    for (std::size_t k = 0; k < order.size(); ++k) placement[order[k]] = placed.rank_of[k];
  return placement;
}

// Counts in units of 1/N token, as the placement does, so that rounding to whole tokens cannot exceed a
// budget.
bool within_bucket(const sharding::View& view, std::span<const std::int64_t> local, std::int64_t bucket) {
  const std::int64_t fullest = *std::max_element(local.begin(), local.end());
  return view.ranks() * fullest + view.distributed_tokens() <= view.ranks() * bucket;
}

}  // namespace

void shard_dacp(const MicroBatch& micro_batch, int ranks, const ShardOptions& options, const AttentionCost&,
                Sharding& out) {
  std::vector<int> placement = micro_batch.placement;
  if (placement.empty() && micro_batch.chunk.count > 1)
    placement.assign(micro_batch.slices.size(), kDistributed);
  else if (placement.empty())
    placement = decide_placement(sharding::View(micro_batch, ranks), options);
  const sharding::View view(micro_batch, ranks, placement);
  sharding::per_document(view, options.remainder, out);
  if (options.bucket_size > 0) out.fits = within_bucket(view, out.rank_local_tokens, options.bucket_size);
  out.placement = std::move(placement);
  out.chosen = "dacp";
}

}  // namespace equipoise
