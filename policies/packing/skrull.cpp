// GDS, global data scheduling (Skrull Algorithm 2). C = bucket size (tokens a CP rank holds), N = CP degree.
//   1. Documents of the batch go to DP ranks, largest cost first, each to the least loaded.
//   2. In each rank: stable sort ascending by length, m = max(1, ceil(tokens / (C*N))); micro-batch j takes
//      sorted[j::m], so every micro-batch gets its share of short and of long documents.
//   3. If any holds C*N tokens or more, or the placement fails on it, m += 1 and start again; no plan at
//      m > documents is an error.
// Without roll-back (an ablation) the first m is final, even where memory does not suffice. Lanes of a step
// may have different numbers of micro-batches; a lane without documents gets an empty one. Where the schedule
// takes whole rounds of micro-batches (lane_round), m goes from one multiple to the next, and some may be
// empty. Apart from that there is no departure from the listing. Ties go to the lowest index, and sums and
// room are exact. Cost: O(n log n) for the sorts, and O(n * c) for each m that is tried.
#include "policies/packing/skrull.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/rounding.h"
#include "policies/least_loaded.h"
#include "policies/loader.h"
#include "policies/plan.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

// The documents of one DP rank or of one micro-batch.
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
  const auto arrival = [&](std::size_t i) { return documents.arrival[i]; };
  Documents sorted;
  for (const std::size_t i : positions_by(documents.arrival.size(), arrival)) sorted.add(documents, i);
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
    for (const GlobalBatch& batch : problem_.batches) {
      Step step = empty_step(problem_.options);
      std::vector<Documents> of_lane = to_lanes(batch, step.lanes.size());
      for (std::size_t lane = 0; lane < of_lane.size(); ++lane) {
        step.lanes[lane].micro_batches = to_micro_batches(ascending(of_lane[lane]));
      }
      add_step(problem_, std::move(step), plan);
    }
    if (broken_ > 0) plan.notes.push_back({"bucket_broken", "", {{"micro_batches", broken_}}});
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
    const std::size_t round = at(std::max(1, problem_.options.lane_round));
    const auto whole = [&](std::size_t count) { return rounded_up(std::max<std::size_t>(1, count), round); };
    if (sorted.slices.empty()) return std::vector<MicroBatch>(round);
    const std::int64_t tokens = sum_of(sorted.tokens);
    std::vector<MicroBatch> micro_batches;
    for (std::size_t m = whole(at((tokens + capacity_ - 1) / capacity_)); m <= whole(sorted.slices.size());
         m += round) {
      if (problem_.options.rollback && fullest(sorted, m) >= capacity_) continue;
      if (try_split(sorted, m, micro_batches)) return micro_batches;
    }
    throw UnplaceableDocument(
        "bucket_size: " + std::to_string(problem_.options.bucket_size) + " tokens on each of " +
            std::to_string(problem_.options.context) + " CP ranks cannot hold document " +
            std::to_string(sorted.slices.back().document) + " of " + std::to_string(sorted.tokens.back()) +
            " tokens; allowed: fewer than " + std::to_string(capacity_),
        sorted.slices.back().document, sorted.tokens.back(), capacity_ - 1);
  }

  // The tokens of the fullest of m micro-batches. It is the one with the longest document, since its k-th
  // longest is at least as long as any other's. Takes O(documents / m), much less than dealing all documents
  // for each m.
  static std::int64_t fullest(const Documents& sorted, std::size_t m) {
    std::int64_t tokens = 0;
    for (std::size_t i = sorted.slices.size(); i > 0; i -= std::min(i, m)) tokens += sorted.tokens[i - 1];
    return tokens;
  }

  // Places sorted[j::m] as micro-batch j. Returns false if one cannot be placed.
  bool try_split(const Documents& sorted, std::size_t m, std::vector<MicroBatch>& micro_batches) {
    const bool rollback = problem_.options.rollback;
    micro_batches.assign(m, {});
    for (std::size_t j = 0; j < m; ++j) {
      Documents part;
      for (std::size_t i = j; i < sorted.slices.size(); i += m) part.add(sorted, i);
      if (by_arrival_) part = in_arrival_order(part);
      skrull::Placement placement =
          place_({part.tokens, part.cost, problem_.options.context, problem_.options.bucket_size, rollback});
      if (placement.failed) return false;
      if (!placement.fits) ++broken_;  // happens only without roll-back, where this m is final
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

bool searches_bucket(const PackOptions& options) {
  return options.best_bucket && options.bucket_size > 0;
}

Notes find_bucket(const PackingProblem& problem, const PlanPrices& prices,
                  Plan (*plan)(const PackingProblem&), PackOptions& found) {
  std::int64_t longest = 0, most = 0;  // most tokens of a document, and of a batch
  for (const GlobalBatch& batch : problem.batches) {
    std::int64_t tokens = 0;
    for (const Slice& slice : batch.slices) {
      tokens += slice.tokens();
      longest = std::max(longest, slice.tokens());
    }
    most = std::max(most, tokens);
  }
  const std::int64_t bound = found.bucket_size;
  double least_seconds = std::numeric_limits<double>::infinity();
  std::int64_t best = bound;
  int tried = 0;
  // All buckets that hold a whole batch give the same plan.
  for (std::int64_t size = longest / found.context + 1; size <= bound; size += size / 10 + 1) {
    found.bucket_size = size;
    const double seconds = prices.seconds_that_fit(plan({problem.batches, found, problem.workload}));
    ++tried;
    if (seconds < least_seconds) best = size;
    least_seconds = std::min(least_seconds, seconds);
    if (size >= most) break;
  }
  found.bucket_size = best;
  if (tried == 0) return {};  // the policy reports the document that needs more
  if (tried > 1) return {{"bucket_fastest", "", {{"tokens", best}, {"tried", tried}, {"bound", bound}}}};
  if (best >= most) return {{"bucket_holds_batch", "", {{"tokens", best}}}};
  return {{"bucket_only_size", "", {{"tokens", best}, {"bound", bound}}}};
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

namespace skrull {

Buckets::Buckets(const PlacementProblem& problem)
    : problem_(problem),
      capacity_(problem.bucket * problem.ranks),
      local_tokens_(static_cast<std::size_t>(problem.ranks), 0),
      local_cost_(static_cast<std::size_t>(problem.ranks), 0),
      rank_of_(problem.tokens.size(), kDistributed),
      oldest_(static_cast<std::size_t>(problem.ranks), 0) {}

std::size_t Buckets::least_loaded() const {
  return static_cast<std::size_t>(std::ranges::min_element(local_cost_) - local_cost_.begin());
}

std::size_t Buckets::most_room() const {
  return static_cast<std::size_t>(std::ranges::min_element(local_tokens_) - local_tokens_.begin());
}

std::size_t Buckets::least_room() const {
  return static_cast<std::size_t>(std::ranges::max_element(local_tokens_) - local_tokens_.begin());
}

std::int64_t Buckets::room(std::size_t rank) const {
  return capacity_ - problem_.ranks * local_tokens_[rank] - distributed_tokens_;
}

bool Buckets::fits_local(std::size_t rank, std::size_t document) const {
  return problem_.ranks * problem_.tokens[document] <= room(rank);
}

bool Buckets::fits_distributed(std::size_t document) const {
  return problem_.tokens[document] <= room(least_room());
}

void Buckets::place_local(std::size_t rank, std::size_t document) {
  local_tokens_[rank] += problem_.tokens[document];
  local_cost_[rank] += problem_.cost[document];
  rank_of_[document] = static_cast<int>(rank);
}

void Buckets::distribute(std::size_t document) {
  distributed_tokens_ += problem_.tokens[document];
}

bool Buckets::roll_back() {
  std::size_t rank = least_room();
  do {
    std::size_t& at = oldest_[rank];
    while (at < rank_of_.size() && rank_of_[at] != static_cast<int>(rank)) ++at;
    if (at == rank_of_.size()) return false;
    local_tokens_[rank] -= problem_.tokens[at];
    local_cost_[rank] -= problem_.cost[at];
    rank_of_[at] = kDistributed;
    distribute(at);
    rank = least_room();
  } while (room(rank) < 0);
  return true;
}

Placement Buckets::finish(bool failed) {
  return {std::move(rank_of_), failed, !failed && room(least_room()) >= 0};
}

namespace {

// Places documents in order: each whole on the rank that `rank_for(buckets, document)` names, if it fits
// there; else distributed, if that fits; else documents are rolled back until it does.
template <class RankFor>
Placement place(const PlacementProblem& problem, const RankFor& rank_for) {
  Buckets buckets(problem);
  for (std::size_t i = 0; i < problem.tokens.size();) {
    if (const std::size_t rank = rank_for(buckets, i); buckets.fits_local(rank, i)) {
      buckets.place_local(rank, i);
    } else if (buckets.fits_distributed(i) || !problem.rollback) {
      buckets.distribute(i);
    } else {
      if (!buckets.roll_back()) return buckets.finish(true);
      continue;  // tries the same document again
    }
    ++i;
  }
  return buckets.finish(false);
}

}  // namespace

// DACP (Skrull Algorithm 1): distributing a short document over the CP ranks only costs communication, and
// keeping a long one on one rank violates balance and memory. Documents are placed ascending by length, each:
//   1. whole to the rank with the least load, if its remaining room takes it; else
//   2. whole to the rank with the most room, if that takes it; else
//   3. distributed (every rank pays s/N room and cost(s)/N load), if the rank with the least room has s/N,
//      else
//   4. roll back: the shortest local document of that rank becomes distributed, and again while any rank is
//      over its bucket; then the document is tried again. No local document left there: failure.
// Departure: the printed listing frees the rolled-back document's room on its own rank but does not charge
// the other ranks, so the bucket size C is exceeded unnoticed. Here every rank is charged. Then a micro-batch
// of at most C*N tokens never fails: if the rank with the least room holds no local document, it pays only
// D/N for the D distributed tokens, and D + s <= C*N. Cost: O(documents * ranks).
Placement place_dacp(const PlacementProblem& problem) {
  return place(problem, [](const Buckets& buckets, std::size_t document) {
    const std::size_t idle = buckets.least_loaded();
    return buckets.fits_local(idle, document) ? idle : buckets.most_room();
  });
}

// Round-robin placement (Skrull Algorithm 4, the ablation of DACP without cost balancing): documents in the
// micro-batch's order go whole to the rank with the most room if they fit there. Otherwise they are
// distributed if the rank with the least room has s/N. Otherwise the oldest local document of that rank is
// rolled back and the document is tried again. Every rank is charged for a rolled-back document, as in DACP.
//
// The micro-batches of gds are ascending lists, for which this rule and DACP agree: both deal documents to
// the ranks in turn, so the rank with the most room has the least load, and a rank's oldest document is its
// shortest. `placement_order = arrival` takes documents in arrival order instead. Then long and short ones
// alternate, and the lack of cost balancing shows. Cost: O(documents * ranks).
Placement place_round_robin(const PlacementProblem& problem) {
  return place(problem, [](const Buckets& buckets, std::size_t) { return buckets.most_room(); });
}

}  // namespace skrull

}  // namespace equipoise
