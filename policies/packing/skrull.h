// Skrull (arXiv 2505.19609) decides which documents share a micro-batch (gds), and which of them stay whole
// on one CP rank (DACP, round-robin).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/parameter.h"
#include "policies/policy.h"

namespace equipoise {

// A PackOptions::bucket_size of 0 is refused.
inline constexpr PackParameter kSkrull[] = {kBucketSize, kRollback};

enum class PlacementOrder { as_grouped, arrival };  // order in which a micro-batch's documents are placed
inline constexpr std::string_view kPlacementOrderNames[] = {"as-grouped", "arrival"};
struct RoundRobinOptions {
  PlacementOrder placement_order = PlacementOrder::as_grouped;
};
inline constexpr PackParameter kRoundRobin[] = {parameter::choice<&RoundRobinOptions::placement_order>(
    "placement_order", kPlacementOrderNames,
    "of the documents of a micro-batch; as-grouped: as gds grouped them, ascending; arrival: as they came")};

Plan plan_gds(const PackingProblem& problem);          // without placements
Plan plan_skrull(const PackingProblem& problem);       // with DACP placements
Plan plan_round_robin(const PackingProblem& problem);  // with round-robin placements, the ablation

// A micro-batch holds fewer than C*N tokens, and so does a document. Without roll-back no document is
// refused.
std::int64_t skrull_hard_limit(const PackOptions& options);
// C*N; 0 where no bucket is given.
std::int64_t skrull_micro_batch_tokens(const PackOptions& options);
// The bucket that a document needs, since it must have fewer than C*N tokens.
Room room_by_bucket(const PackOptions& options, std::int64_t tokens);

// Whether the bucket is only an upper bound from memory (OptionSearch).
bool searches_bucket(const PackOptions& options);
// Finds the bucket of the fastest plan; found.bucket_size is the most that memory allows. The sizes tried
// depend only on the documents (each is a tenth larger than the previous one), so a GPU with more memory
// tries more sizes and is never slower. Makes and prices 10 to 50 plans.
Notes find_bucket(const PackingProblem& problem, const PlanPrices& prices,
                  Plan (*plan)(const PackingProblem&), PackOptions& found);
template <Plan (*plan)(const PackingProblem&)>
Notes find_bucket_of(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found) {
  return find_bucket(problem, prices, plan, found);
}

// Skrull's placements decide which documents of a micro-batch stay whole on one CP rank and which are
// distributed over all. The two rules, DACP and round-robin, share the bookkeeping.
namespace skrull {

// The documents of one micro-batch, in the order of placement.
struct PlacementProblem {
  std::span<const std::int64_t> tokens;
  std::span<const double> cost;  // cost of each whole document
  int ranks = 1;                 // N, the CP degree
  std::int64_t bucket = 0;       // C, the tokens of a rank
  bool rollback = true;          // false: a document that fits nowhere is distributed, even over budget
};

struct Placement {
  std::vector<int> rank_of;  // per document: kDistributed or a CP rank
  bool failed = false;       // no local document was left to roll back, and rank_of is invalid
  bool fits = true;          // every rank is within its bucket
};

// Both take O(documents * ranks), since a document is rolled back at most once.
Placement place_dacp(const PlacementProblem&);
Placement place_round_robin(const PlacementProblem&);
using PlaceFn = Placement (*)(const PlacementProblem&);

// The documents of the ranks. Room is exact, in units of 1/N token: a local document takes N units per token
// on its rank, a distributed one takes 1 unit per token on every rank. Distributed documents are equal on all
// ranks, so only local sums are compared to find the most room or the least load.
class Buckets {
 public:
  explicit Buckets(const PlacementProblem& problem);

  [[nodiscard]] std::size_t least_loaded()
      const;  // the rank with the least cost; ties go to the lower rank, here and below
  [[nodiscard]] std::size_t most_room() const;
  [[nodiscard]] std::size_t least_room() const;
  [[nodiscard]] std::int64_t room(std::size_t rank) const;  // room in 1/N token; negative: over its bucket

  [[nodiscard]] bool fits_local(std::size_t rank, std::size_t document) const;
  [[nodiscard]] bool fits_distributed(std::size_t document) const;
  void place_local(std::size_t rank, std::size_t document);
  void distribute(std::size_t document);

  // Distributes the oldest local document of the rank with the least room (for documents ascending by length
  // it is also that rank's shortest), charges every rank, and repeats while any rank is over its bucket.
  // Returns false if such a rank has no local document left.
  [[nodiscard]] bool roll_back();

  [[nodiscard]] Placement finish(bool failed);

 private:
  const PlacementProblem& problem_;
  std::int64_t capacity_;  // bucket of a rank, in 1/N token
  std::int64_t distributed_tokens_ = 0;
  std::vector<std::int64_t> local_tokens_;
  std::vector<double> local_cost_;
  std::vector<int> rank_of_;
  std::vector<std::size_t> oldest_;  // per rank: index of its first local document
};

}  // namespace skrull

}  // namespace equipoise
