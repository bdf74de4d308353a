// FlexSP (arXiv 2412.01523): one layout of CP groups for the step, each document whole on one group, so that
// the slowest group is as fast as can be. By a fast heuristic (flexsp_heuristic.cpp) or, with `exact`, by
// branch and bound (flexsp_exact.cpp). A document's time on a group of d ranks is W / d unless the cost knows
// the communication; it needs a group whose ranks hold it. A group runs its documents as micro-batches of at
// most tokens-per-rank * degree tokens, longest documents first. Through a pipeline a lane takes sum +
// (stages - 1) * largest over its micro-batches, so there none is made longer than the lane's longest
// document: then the sum is all that packing can still help, and it does not. Departures: the paper first
// cuts the batch into micro-batches that fit the memory and gives each its own layout; here one layout serves
// the step and memory only limits what runs at once. Its MILP buckets lengths.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "policies/cp_degree/cp_grid.h"
#include "policies/cp_degree/flexsp_problem.h"
#include "policies/cp_degree/group_loads.h"
#include "policies/length_order.h"

namespace equipoise {
namespace {

constexpr std::int64_t kExactNodes = 20'000'000;

// `order` receives the batch's index of each document of the problem.
FlexspProblem problem_of(const GlobalBatch& batch, const CpGrid& grid, const Workload& workload,
                         std::vector<std::uint32_t>& order) {
  std::vector<std::int64_t> lengths;
  for (const Slice& slice : batch.slices) lengths.push_back(slice.tokens());
  order = longest_first(lengths);
  FlexspProblem problem;
  problem.grid = grid;
  for (const std::uint32_t i : order) {
    problem.tokens.push_back(lengths[i]);
    problem.least_degree.push_back(grid.degree_needed(lengths[i]));
  }
  for (int degree = 1; degree <= grid.max_degree; degree *= 2) {
    problem.times.emplace_back(lengths.size());
    workload.on_group(problem.tokens, degree, problem.times.back());
  }
  return problem;
}

std::vector<MicroBatch> micro_batches_of(const FlexspProblem& problem, const FlexspSolution& solution,
                                         std::size_t group, const GlobalBatch& batch,
                                         const std::vector<std::uint32_t>& order) {
  const LayoutView view(problem, solution.layout);
  const std::int64_t room = problem.grid.tokens_per_rank * solution.layout[group];
  double longest = 0;
  for (std::size_t i = 0; i < problem.documents(); ++i)
    if (solution.group_of[i] == group) longest = std::max(longest, view.time(group, i));

  std::vector<MicroBatch> micro_batches(1);
  std::int64_t tokens = 0;
  double time = 0;
  for (std::size_t i = 0; i < problem.documents(); ++i) {
    if (solution.group_of[i] != group) continue;
    const bool full = tokens + problem.tokens[i] > room;
    const bool slow = problem.grid.stages > 1 && time + view.time(group, i) > longest;
    if (!micro_batches.back().slices.empty() && (full || slow)) {
      micro_batches.emplace_back();
      tokens = 0;
      time = 0;
    }
    micro_batches.back().slices.push_back(batch.slices[order[i]]);
    tokens += problem.tokens[i];
    time += view.time(group, i);
  }
  return micro_batches;
}

}  // namespace

Plan plan_flexsp(const PackingProblem& packing) {
  const bool exact = packing.options.of<FlexspOptions>().exact;
  const CpGrid grid = CpGrid::of(packing.options);
  Plan plan;
  int unproven = 0;
  for (const GlobalBatch& batch : packing.batches) {
    std::vector<std::uint32_t> order;
    const FlexspProblem problem = problem_of(batch, grid, packing.workload, order);
    const FlexspSolution solution = exact ? flexsp_exact(problem, kExactNodes) : flexsp_heuristic(problem);
    unproven += solution.proven ? 0 : 1;
    Step step;
    for (std::size_t g = 0; g < solution.layout.size(); ++g)
      step.lanes.push_back({solution.layout[g], micro_batches_of(problem, solution, g, batch, order), 0});
    plan.steps.push_back(std::move(step));
  }
  if (exact && unproven > 0) {
    plan.notes.push_back("flexsp: " + std::to_string(unproven) + " of " + std::to_string(plan.steps.size()) +
                         " steps are not proven optimal within " + std::to_string(kExactNodes) + " nodes");
  }
  return plan;
}

}  // namespace equipoise
