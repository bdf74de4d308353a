// Variable-length packing by an integer program (WLB-LLM section 4.2): as fixed-solver, with the whole work
// W(d) in place of len^2 and L_max in place of the window.
//
// wlb decides which documents a step holds (its queues and what it carries are the same), and its packing is
// the start; the solver then looks for a better assignment of those documents to the step's N micro-batches,
// and never returns a worse one. A step is one set of bins here, so its largest is all there is to minimise.
// The bins go to lanes as wlb's do: largest W first, to the least loaded lane with a free place.
//
// Cost: wlb, and one integer program a step; see SolverReport.
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policies/least_loaded.h"
#include "policies/length_order.h"
#include "policies/packing/wlb.h"
#include "policies/solver/solved_steps.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

std::vector<Lane> to_lanes(Bins& bins, const std::vector<double>& weights, const std::vector<Lane>& shape) {
  std::vector<Lane> lanes(shape.size());
  LeastLoaded<double> load(shape.size());
  for (std::size_t lane = 0; lane < shape.size(); ++lane) {
    lanes[lane].context = shape[lane].context;
    if (shape[lane].micro_batches.empty()) load.close(lane);
  }
  std::vector<std::size_t> lane_of(bins.size());
  std::vector<std::size_t> taken(shape.size(), 0);
  for (const std::uint32_t b : heaviest_first(weights)) {
    const std::size_t lane = load.least();
    lane_of[b] = lane;
    load.add(lane, weights[b]);
    if (++taken[lane] == shape[lane].micro_batches.size()) load.close(lane);
  }
  for (std::size_t b = 0; b < bins.size(); ++b) {
    MicroBatch micro_batch;
    micro_batch.slices = std::move(bins[b]);
    lanes[lane_of[b]].micro_batches.push_back(std::move(micro_batch));
  }
  return lanes;
}

void solve_step(Step& step, std::size_t index, const PackingProblem& problem, Plan& plan) {
  std::vector<Slice> documents;
  AssignmentProblem program;
  BinOf start;
  program.bins = 0;
  program.capacity = max_tokens(problem.options);
  for (const Lane& lane : step.lanes) {
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      documents.insert(documents.end(), micro_batch.slices.begin(), micro_batch.slices.end());
      start.resize(documents.size(), static_cast<std::uint32_t>(program.bins));
      ++program.bins;
    }
  }
  for (const Slice& slice : documents) program.tokens.push_back(slice.tokens());
  program.weight = work_of(documents, problem.workload);
  Bins bins = solve_bins(documents, program, std::span(&start, 1), problem.options, index, plan);

  std::vector<double> weights;
  for (const std::vector<Slice>& bin : bins) {
    weights.push_back(0);
    for (const double w : work_of(bin, problem.workload)) weights.back() += w;
  }
  step.lanes = to_lanes(bins, weights, step.lanes);
}

}  // namespace

Plan plan_varlen_solver(const PackingProblem& problem) {
  Plan plan = plan_wlb(problem);
  for (std::size_t s = 0; s < plan.steps.size(); ++s) solve_step(plan.steps[s], s, problem, plan);
  note_programs(plan);
  return plan;
}

}  // namespace equipoise
