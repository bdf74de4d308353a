// The GPUs that policies with a CP degree per document divide into groups, and how a group becomes a lane.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

enum class Degrees { powers_of_two, any };
inline constexpr std::string_view kDegreesNames[] = {"powers-of-two", "any"};

struct CpGridOptions {
  std::int64_t tokens_per_rank = 0;  // the most tokens of a rank; 0: bucket_size, else window / context
  int max_degree = 0;                // the largest CP group; 0: all GPUs
  std::vector<int> of_heads = {};    // rising degrees that can share the model's heads; empty: all
  // Options of hybrid-cp and dynamic-cp.
  Degrees degrees = Degrees::powers_of_two;
  std::int64_t min_degree = 1;
  std::int64_t align = 1;  // micro-batches of a group come in multiples of it
};
inline constexpr PackParameter kTokensPerRank = parameter::integer<&CpGridOptions::tokens_per_rank>(
    "tokens_per_rank", 1, kLongestSize, "what a rank holds");
inline constexpr PackParameter kGroupDegrees[] = {
    parameter::choice<&CpGridOptions::degrees>(
        "degrees", kDegreesNames,
        "CP degrees that a group may have; powers-of-two: 1, 2, 4 and so on; any: every number"),
    parameter::integer<&CpGridOptions::min_degree>("min_degree", 1, 1 << 20, "least CP degree of a group"),
    parameter::integer<&CpGridOptions::align>("align", 1, 1 << 16,
                                              "micro-batches of a group come in multiples of it, the last "
                                              "ones empty: the stages for interleaved-1f1b")};

struct FlexspOptions {
  bool exact = false;  // whether the exact solver replaces the heuristic
};
inline constexpr PackParameter kFlexsp[] = {
    parameter::flag<&FlexspOptions::exact>("exact", "the exact solver instead of the heuristic")};

struct CpGrid {
  int gpus = 1;                      // GPUs of the DP x CP grid, since groups never span pipeline stages
  int max_degree = 1;                // largest power of two that a group of flexsp may have
  std::int64_t tokens_per_rank = 1;
  int stages = 1;                    // pipeline stages
  // The rising degrees that a group of hybrid-cp or dynamic-cp may have. The last one is the whole grid (or
  // max_degree), even if it is no power of two, unless the model's heads do not allow it. A group takes it
  // where no smaller degree holds a document or fits next to the other groups.
  std::vector<int> degrees = {};
  std::size_t align = 1;  // a lane has a multiple of so many micro-batches, the last ones empty

  // Throws UserError where the options give no grid.
  static CpGrid of(const PackOptions& options);

  // The smallest of the degrees whose ranks together hold a document.
  [[nodiscard]] int degree_needed(std::int64_t tokens) const;
  // The smallest power of two whose ranks together hold a document, for flexsp.
  [[nodiscard]] int power_needed(std::int64_t tokens) const;
  // The index of the first degree that is at least so large; degrees.size() where none is.
  [[nodiscard]] std::size_t place_of(std::int64_t degree) const;

  // The time of a lane from the times of its micro-batches. Through a pipeline of S stages, the largest
  // counts S times and the others once (WLB-LLM Fig. 5); with one stage it is their sum.
  [[nodiscard]] double lane_time(double sum, double largest) const { return sum + (stages - 1) * largest; }
};

// The longest document that fits a group: tokens_per_rank times the largest degree, for flexsp the largest
// power of two.
std::int64_t cp_grid_hard_limit(const PackOptions& options);
std::int64_t flexsp_hard_limit(const PackOptions& options);
// The tokens that the whole grid may hold, or a bucket allows, as far as the options give them; else 0.
std::int64_t cp_grid_micro_batch_tokens(const PackOptions& options);
// The memory limit of a rank when all ranks of the grid work together.
Room room_by_rank(const PackOptions& options, std::int64_t tokens);

// A CP group that is being filled, with the indices of its documents in the order of their addition.
struct CpGroup {
  int degree = 1;
  std::vector<std::uint32_t> documents;
};

// Gives idle GPUs to groups: the first of the smallest groups repeatedly takes the next degree while there
// are enough idle GPUs for it. `used`: GPUs of all groups.
void widen_groups(const CpGrid& grid, std::vector<CpGroup>& groups, int used);

// Appends a lane for each group, and an idle lane of one GPU for each GPU that no group uses, so that the
// lanes of a barrier group cover the grid. `micro_batches` turns a group into its micro-batches.
template <class MicroBatches>
void append_lanes(std::span<const CpGroup> groups, const CpGrid& grid, int barrier_group,
                  const MicroBatches& micro_batches, Step& step) {
  int used = 0;
  for (const CpGroup& group : groups) {
    std::vector<MicroBatch> own = micro_batches(group);
    own.resize((own.size() + grid.align - 1) / grid.align * grid.align);
    step.lanes.push_back({group.degree, std::move(own), barrier_group});
    used += group.degree;
  }
  for (; used < grid.gpus; ++used)
    step.lanes.push_back({1, std::vector<MicroBatch>(grid.align), barrier_group});
}

Plan plan_hybrid_cp(const PackingProblem& problem);
Plan plan_dynamic_cp(const PackingProblem& problem);
Plan plan_flexsp(const PackingProblem& problem);

}  // namespace equipoise
