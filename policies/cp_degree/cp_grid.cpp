#include "policies/cp_degree/cp_grid.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/degrees.h"
#include "policies/packing/skrull.h"
#include "policies/steps.h"

namespace equipoise {

void offer_degrees(std::vector<int> of_heads, PackOptions& options) {
  options.of<CpGridOptions>().of_heads = std::move(of_heads);
}

CpGrid CpGrid::of(const PackOptions& options) {
  const std::int64_t gpus = grid_gpus(options);
  constexpr std::int64_t kMostGpus = std::int64_t{1} << 20;
  if (gpus > kMostGpus) throw UserError("gpus: expected at most 2^20, found ", gpus);
  CpGrid grid;
  grid.gpus = static_cast<int>(gpus);
  const CpGridOptions& own = options.of<CpGridOptions>();
  const std::int64_t bucket = options.bucket_size;
  const std::int64_t most = own.max_degree > 0 ? std::min<std::int64_t>(own.max_degree, gpus) : gpus;
  const std::vector<int>& of_heads = own.of_heads;
  const auto heads_allow = [&](int degree) {
    return of_heads.empty() || std::binary_search(of_heads.begin(), of_heads.end(), degree);
  };
  grid.max_degree = static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(most)));
  while (grid.max_degree > 1 && !heads_allow(grid.max_degree)) grid.max_degree /= 2;
  if (own.min_degree > most)
    throw UserError("min_degree: expected 1 to ", most, " (GPUs of the DP x CP grid), found ",
                    own.min_degree);
  const bool any = own.degrees == Degrees::any;
  for (std::int64_t degree = 1; degree < most; degree = any ? degree + 1 : 2 * degree)
    if (degree >= own.min_degree) grid.degrees.push_back(static_cast<int>(degree));
  grid.degrees.push_back(static_cast<int>(most));
  std::erase_if(grid.degrees, [&](int degree) { return !heads_allow(degree); });
  if (grid.degrees.empty())
    throw UserError("min_degree: expected a degree up to ", most,
                    " that the model's heads allow and `degrees` has (allowed by the heads: ",
                    all_joined(of_heads, ", ", [](int degree) { return std::to_string(degree); }),
                    "), found ", own.min_degree);
  grid.align = static_cast<std::size_t>(own.align);
  grid.tokens_per_rank = own.tokens_per_rank > 0 ? own.tokens_per_rank
                         : bucket > 0            ? bucket
                                                 : options.context_window / options.context;
  if (grid.tokens_per_rank < 1)
    throw UserError("tokens_per_rank: expected a number >= 1, found ", grid.tokens_per_rank);
  if (options.stages < 1) throw UserError("stages: expected a number >= 1, found ", options.stages);
  grid.stages = options.stages;
  return grid;
}

int CpGrid::degree_needed(std::int64_t tokens) const {
  return degrees[std::min(place_of((tokens + tokens_per_rank - 1) / tokens_per_rank), degrees.size() - 1)];
}

int CpGrid::power_needed(std::int64_t tokens) const {
  const std::int64_t ranks = (tokens + tokens_per_rank - 1) / tokens_per_rank;
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(ranks)));
}

std::size_t CpGrid::place_of(std::int64_t degree) const {
  return static_cast<std::size_t>(std::lower_bound(degrees.begin(), degrees.end(), degree) - degrees.begin());
}

void widen_groups(const CpGrid& grid, std::vector<CpGroup>& groups, int used) {
  while (grid.gpus > used && !groups.empty()) {
    const auto smallest = std::ranges::min_element(groups, {}, &CpGroup::degree);
    const std::size_t next = grid.place_of(smallest->degree) + 1;
    if (next == grid.degrees.size() || grid.degrees[next] - smallest->degree > grid.gpus - used) return;
    used += grid.degrees[next] - smallest->degree;
    smallest->degree = grid.degrees[next];
  }
}

std::int64_t cp_grid_hard_limit(const PackOptions& options) {
  const CpGrid grid = CpGrid::of(options);
  return grid.tokens_per_rank * grid.degrees.back();
}

std::int64_t flexsp_hard_limit(const PackOptions& options) {
  const CpGrid grid = CpGrid::of(options);
  return grid.tokens_per_rank * grid.max_degree;
}

std::int64_t cp_grid_micro_batch_tokens(const PackOptions& options) {
  const std::int64_t each = options.of<CpGridOptions>().tokens_per_rank;
  return each > 0 ? each * grid_gpus(options) : skrull_micro_batch_tokens(options);
}

Room room_by_rank(const PackOptions& options, std::int64_t tokens) {
  const std::int64_t gpus = std::max<std::int64_t>(1, options.gpus);
  const bool by_bucket = options.of<CpGridOptions>().tokens_per_rank == 0 && options.bucket_size > 0;
  if (by_bucket) return room_by_bucket(options, tokens);
  return room_by<&CpGridOptions::tokens_per_rank>("tokens_per_rank", (tokens + gpus - 1) / gpus, options);
}

}  // namespace equipoise
