// GDS, global data scheduling (Skrull Algorithm 2). C = bucket size (tokens a CP rank holds), N = CP degree.
//   1. Documents of the batch go to DP ranks, largest cost first, each to the least loaded.
//   2. In each rank: stable sort ascending by length, m = max(1, ceil(tokens / (C*N))); micro-batch j takes
//      sorted[j::m], so every micro-batch gets its share of short and of long documents.
//   3. If any holds C*N tokens or more, or the placement fails on it, m += 1 and start again; no plan at
//      m > documents is an error.
// Without roll-back (an ablation) nothing is tried again: the first m stands, whatever it does to the memory.
// Lanes of a step may end with different numbers of micro-batches. A lane without documents gets an empty
// one. Departure: none from the listing; ties go to the lowest index, sums and room are exact. Cost: O(n log
// n) for the sorts + O(n * c) for each m that is tried.
#include "policies/skrull/gds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/least_loaded.h"
#include "policies/length_order.h"
#include "policies/skrull/placement.h"
#include "policies/step_shape.h"
#include "policies/unplaceable.h"

namespace equipoise {
namespace {

// Documents of one DP rank or of one micro-batch.
struct Documents {
  std::vector<Slice> slices;
  std::vector<std::int64_t> tokens;
  std::vector<double> cost;
  std::vector<std::uint32_t> arrival;  // position in the batch

  void add(const Slice& slice, double its_cost, std::uint32_t position) {
    slices.push_back(slice);
    tokens.push_back(slice.tokens());
    cost.push_back(its_cost);
    arrival.push_back(position);
  }
  void add(const Documents& from, std::size_t i) { add(from.slices[i], from.cost[i], from.arrival[i]); }
};

Documents in_arrival_order(const Documents& documents) {
  std::vector<std::size_t> order(documents.arrival.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return documents.arrival[a] < documents.arrival[b]; });
  Documents sorted;
  for (const std::size_t i : order) sorted.add(documents, i);
  return sorted;
}

class Gds {
 public:
  Gds(const PackingProblem& problem, skrull::PlaceFn place, bool keep_placement,
      PlacementOrder order = PlacementOrder::as_grouped)
      : problem_(problem),
        place_(place),
        keep_placement_(keep_placement),
        by_arrival_(order == PlacementOrder::arrival),
        capacity_(problem.options.bucket_size * problem.options.context) {
    if (problem.options.bucket_size <= 0) {
      throw UserError("bucket_size: expected a number >= 1, found " +
                      std::to_string(problem_.options.bucket_size) +
                      "; it is the tokens that one CP rank can hold");
    }
  }

  Plan plan() {
    Plan plan;
    plan.steps.reserve(problem_.batches.size());
    for (const GlobalBatch& batch : problem_.batches) {
      Step step = empty_step(problem_.options);
      std::vector<Documents> of_lane = to_lanes(batch, step.lanes.size());
      for (std::size_t lane = 0; lane < of_lane.size(); ++lane) {
        step.lanes[lane].micro_batches = to_micro_batches(ascending(of_lane[lane]));
      }
      plan.steps.push_back(std::move(step));
    }
    if (broken_ > 0) {
      plan.notes.push_back(std::to_string(broken_) +
                           " micro-batches hold more than the bucket size on a rank");
    }
    return plan;
  }

 private:
  std::vector<Documents> to_lanes(const GlobalBatch& batch, std::size_t lanes) const {
    const std::vector<double> cost = work_of(batch.slices, problem_.workload);
    std::vector<Documents> of_lane(lanes);
    LeastLoaded<double> load(lanes);
    for (const std::uint32_t i : heaviest_first(cost)) {
      const std::size_t lane = load.least();
      of_lane[lane].add(batch.slices[i], cost[i], i);
      load.add(lane, cost[i]);
    }
    return of_lane;
  }

  static Documents ascending(const Documents& documents) {
    Documents sorted;
    for (const std::uint32_t i : shortest_first(documents.tokens)) {
      sorted.add(documents, i);
    }
    return sorted;
  }

  std::vector<MicroBatch> to_micro_batches(const Documents& sorted) {
    if (sorted.slices.empty()) return std::vector<MicroBatch>(1);
    std::int64_t tokens = 0;
    for (const std::int64_t t : sorted.tokens) tokens += t;
    auto m = static_cast<std::size_t>((tokens + capacity_ - 1) / capacity_);
    std::vector<MicroBatch> micro_batches;
    for (; m <= sorted.slices.size(); ++m) {
      if (try_split(sorted, m, micro_batches)) return micro_batches;
    }
    throw UnplaceableDocument(
        "bucket_size: " + std::to_string(problem_.options.bucket_size) + " tokens on each of " +
            std::to_string(problem_.options.context) + " CP ranks cannot hold document " +
            std::to_string(sorted.slices.back().document) + " of " + std::to_string(sorted.tokens.back()) +
            " tokens; allowed: fewer than " + std::to_string(capacity_),
        sorted.slices.back().document, sorted.tokens.back(), capacity_ - 1);
  }

  // sorted[j::m] as micro-batch j, placed. False if one is too large or cannot be placed.
  bool try_split(const Documents& sorted, std::size_t m, std::vector<MicroBatch>& micro_batches) {
    const bool rollback = problem_.options.rollback;
    micro_batches.assign(m, {});
    for (std::size_t j = 0; j < m; ++j) {
      Documents part;
      std::int64_t tokens = 0;
      for (std::size_t i = j; i < sorted.slices.size(); i += m) {
        part.add(sorted, i);
        tokens += sorted.tokens[i];
      }
      if (rollback && tokens >= capacity_) return false;
      if (by_arrival_) part = in_arrival_order(part);
      skrull::Placement placement =
          place_({part.tokens, part.cost, problem_.options.context, problem_.options.bucket_size, rollback});
      if (placement.failed) return false;
      if (!placement.fits) ++broken_;  // only without roll-back, and then this m is the last
      micro_batches[j].slices = std::move(part.slices);
      if (keep_placement_) micro_batches[j].placement = std::move(placement.rank_of);
    }
    return true;
  }

  const PackingProblem& problem_;
  skrull::PlaceFn place_;
  bool keep_placement_;
  bool by_arrival_;
  std::int64_t capacity_;  // C*N tokens
  std::int64_t broken_ = 0;
};

}  // namespace

Plan plan_gds(const PackingProblem& problem) {
  return Gds(problem, skrull::place_dacp, false).plan();
}

Plan plan_skrull(const PackingProblem& problem) {
  return Gds(problem, skrull::place_dacp, true).plan();
}

Plan plan_round_robin(const PackingProblem& problem) {
  return Gds(problem, skrull::place_round_robin, true,
             problem.options.of<RoundRobinOptions>().placement_order)
      .plan();
}

std::int64_t skrull_hard_limit(const PackOptions& options) {
  return options.rollback ? options.bucket_size * options.context - 1 : 0;
}

std::int64_t skrull_micro_batch_tokens(const PackOptions& options) {
  return options.bucket_size * options.context;
}

Room room_by_bucket(const PackOptions& options, std::int64_t tokens) {
  return room_by<&PackOptions::bucket_size>("bucket_size", tokens / options.context + 1, options);
}

}  // namespace equipoise
