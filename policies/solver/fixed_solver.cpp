// Fixed-length packing by an integer program (WLB-LLM section 4.1, Eq. 1-2; Table 2 "fixed solver").
//
// min over assignments of the largest sum of len^2 of a micro-batch, every document once, at most one window
// of tokens in each. `pack_window` global batches are packed together into pack_window * N bins; bin j
// belongs to step j div N and, as position p = j mod N in it, to lane p mod lanes. Full windows leave no
// slack, so a good packing may not even be feasible to find: the search starts from plain's own windows,
// improved by swaps.
//
// Departures: the paper calls Gurobi, we call CBC, and where the time limit ends the search the incumbent is
// used and its gap reported. The plan is a pure function of its input only if no limit is hit. Bins are
// ordered by their first document, which keeps documents near the step they arrived for. Document batches
// have no windows to start from; they start from the greedy packing and are refused where that finds no room.
//
// Cost: exponential in the worst case; see SolverReport for what it came to.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/error.h"
#include "policies/solver/solved_steps.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

// Documents of one pack window as an integer program, and the windows they came in as its start.
struct PackWindow {
  std::vector<Slice> documents;
  AssignmentProblem problem;
  BinOf start;
  bool windows_known = true;
};

PackWindow pack_window_of(std::span<const GlobalBatch> batches, std::size_t micro_batches,
                          std::int64_t capacity) {
  PackWindow pack;
  pack.problem.bins = batches.size() * micro_batches;
  for (std::size_t k = 0; k < batches.size(); ++k) {
    const GlobalBatch& batch = batches[k];
    const std::size_t windows = batch.window_begin.empty() ? 0 : batch.window_begin.size() - 1;
    pack.windows_known = pack.windows_known && (windows > 0 || batch.slices.empty());
    const std::size_t windows_a_bin = std::max<std::size_t>(1, (windows + micro_batches - 1) / micro_batches);
    std::size_t window = 0;
    for (std::size_t i = 0; i < batch.slices.size(); ++i) {
      while (window + 1 < windows && batch.window_begin[window + 1] <= i) ++window;
      const std::int64_t tokens = batch.slices[i].tokens();
      pack.documents.push_back(batch.slices[i]);
      pack.problem.tokens.push_back(tokens);
      pack.problem.weight.push_back(static_cast<double>(tokens) * static_cast<double>(tokens));
      pack.start.push_back(static_cast<std::uint32_t>(k * micro_batches + window / windows_a_bin));
    }
  }
  pack.problem.capacity = capacity;
  return pack;
}

// Where the user gives fewer micro-batches than the windows need, plain's are longer; then ours may be too.
void fit_capacity_to_start(PackWindow& pack) {
  std::vector<std::int64_t> tokens(pack.problem.bins, 0);
  for (std::size_t i = 0; i < pack.start.size(); ++i) tokens[pack.start[i]] += pack.problem.tokens[i];
  for (const std::int64_t t : tokens) pack.problem.capacity = std::max(pack.problem.capacity, t);
}

void append_steps(Bins& bins, std::size_t micro_batches, const PackOptions& options, Plan& plan) {
  for (std::size_t first = 0; first < bins.size(); first += micro_batches) {
    Step step = empty_step(options);
    for (std::size_t p = 0; p < micro_batches; ++p) {
      MicroBatch micro_batch;
      micro_batch.slices = std::move(bins[first + p]);
      step.lanes[p % step.lanes.size()].micro_batches.push_back(std::move(micro_batch));
    }
    plan.steps.push_back(std::move(step));
  }
}

// A document waits from the step of its batch to the step of its bin.
void note_carried(std::span<const GlobalBatch> batches, std::size_t first_step, Plan& plan) {
  for (std::size_t s = 0; s + 1 < batches.size(); ++s) {
    std::vector<Slice> waiting;
    for (std::size_t k = 0; k <= s; ++k)
      waiting.insert(waiting.end(), batches[k].slices.begin(), batches[k].slices.end());
    for (std::size_t done = 0; done <= s; ++done)
      for (const Lane& lane : plan.steps[first_step + done].lanes)
        for (const MicroBatch& micro_batch : lane.micro_batches)
          for (const Slice& slice : micro_batch.slices) std::erase(waiting, slice);
    plan.steps[first_step + s].carried = std::move(waiting);
  }
}

}  // namespace

Plan plan_fixed_solver(const PackingProblem& problem) {
  const PackOptions& options = problem.options;
  const auto micro_batches = static_cast<std::size_t>(micro_batches_of_step(options));
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(1, options.pack_window));
  Plan plan;
  for (std::size_t first = 0; first < problem.batches.size(); first += width) {
    const std::span<const GlobalBatch> batches =
        problem.batches.subspan(first, std::min(width, problem.batches.size() - first));
    PackWindow pack = pack_window_of(batches, micro_batches, micro_batch_capacity(options));
    if (pack.windows_known) {
      fit_capacity_to_start(pack);
    } else if (!assign_greedily(pack.problem, pack.start)) {
      throw UserError("fixed-solver: step " + std::to_string(first) + ": the documents do not fit " +
                      std::to_string(pack.problem.bins) + " micro-batches of " +
                      std::to_string(pack.problem.capacity) +
                      " tokens; use window batches, more micro-batches or a "
                      "longer context_window");
    }
    Bins bins = solve_bins(pack.documents, pack.problem, pack.start, options, plan.steps.size(), plan);
    append_steps(bins, micro_batches, options, plan);
    note_carried(batches, plan.steps.size() - batches.size(), plan);
  }
  return plan;
}

}  // namespace equipoise
