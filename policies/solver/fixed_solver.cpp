// Fixed-length packing by an integer program (WLB-LLM section 4.1, Eq. 1-2; Table 2 "fixed solver").
//
// min over assignments of the largest sum of len^2 of a micro-batch, every document once, at most one window
// of tokens in each. `pack_window` global batches are packed together into pack_window * N bins; then, with
// that maximum kept, the sum over steps of each step's largest bin is minimised (solver/solved_steps.h). Bins
// go to steps sorted by sum of len^2, largest first, N a step, and inside a step position p to lane p mod
// lanes.
//
// Full windows leave no slack, so a good packing may not even be feasible to find: the search starts from the
// better of plain's own windows and fixed-greedy over the same pack window (maximum first, then the sum), and
// its result is never worse than that.
//
// Departures: the paper calls Gurobi, we call CBC or HiGHS, and where a limit ends the search the incumbent
// is used and its gap reported. The plan is a pure function of its input if no time limit is hit, or if
// `node_limit` stands in its place. Document batches have no windows to start from; they are refused where
// fixed-greedy finds no room.
//
// Cost: exponential in the worst case; see SolverReport for what it came to.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/length_order.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/solver/solved_steps.h"
#include "policies/step_shape.h"
#include "policies/unplaceable.h"

namespace equipoise {
namespace {

// Documents of one pack window as an integer program, and the windows they came in.
struct PackWindow {
  std::vector<Slice> documents;
  AssignmentProblem problem;
  BinOf windows;
  bool windows_known = true;
};

PackWindow pack_window_of(std::span<const GlobalBatch> batches, std::size_t micro_batches,
                          std::int64_t capacity) {
  PackWindow pack;
  pack.problem.bins = batches.size() * micro_batches;
  pack.problem.bins_a_step = micro_batches;
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
      pack.windows.push_back(static_cast<std::uint32_t>(k * micro_batches + window / windows_a_bin));
    }
  }
  pack.problem.capacity = capacity;
  return pack;
}

// Where the user gives fewer micro-batches than the windows need, plain's are longer; then ours may be too.
void fit_capacity_to_windows(PackWindow& pack) {
  for (const std::int64_t tokens : bin_tokens(pack.problem, pack.windows))
    pack.problem.capacity = std::max(pack.problem.capacity, tokens);
}

// What fixed-greedy does with the same documents; `nowhere` receives the first that finds no room.
BinOf greedy_start(const PackWindow& pack, std::int64_t capacity, std::optional<std::size_t>& nowhere) {
  const std::vector<std::uint32_t> order = longest_first(pack.problem.tokens);
  std::vector<std::int64_t> sorted;
  sorted.reserve(order.size());
  for (const std::uint32_t i : order) sorted.push_back(pack.problem.tokens[i]);
  const std::vector<std::size_t> bin_of_sorted = place_by_attention(sorted, pack.problem.bins, capacity);
  BinOf bin_of(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (bin_of_sorted[k] == kNowhere && !nowhere) nowhere = order[k];
    bin_of[order[k]] = static_cast<std::uint32_t>(bin_of_sorted[k]);
  }
  return bin_of;
}

// The packings to start from: plain's windows, and fixed-greedy's if it places everything.
std::vector<BinOf> starts_of(const PackWindow& pack, std::int64_t capacity, std::size_t step) {
  std::vector<BinOf> starts;
  if (pack.windows_known) starts.push_back(pack.windows);
  std::optional<std::size_t> nowhere;
  BinOf greedy = greedy_start(pack, capacity, nowhere);
  if (!nowhere) starts.push_back(std::move(greedy));
  if (!starts.empty()) return starts;
  const Slice& slice = pack.documents[*nowhere];
  throw UnplaceableDocument("fixed-solver: step " + std::to_string(step) + ": document " +
                                std::to_string(slice.document) + " of " + std::to_string(slice.tokens()) +
                                " tokens finds no room in " + std::to_string(pack.problem.bins) +
                                " micro-batches of " + std::to_string(capacity) +
                                " tokens; use window batches, more micro-batches or a longer context_window",
                            slice.document, slice.tokens(), capacity);
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
  const auto width =
      static_cast<std::size_t>(std::max<std::int64_t>(1, options.of<FixedLengthOptions>().pack_window));
  Plan plan;
  for (std::size_t first = 0; first < problem.batches.size(); first += width) {
    const std::span<const GlobalBatch> batches =
        problem.batches.subspan(first, std::min(width, problem.batches.size() - first));
    const std::int64_t capacity = micro_batch_capacity(options);
    PackWindow pack = pack_window_of(batches, micro_batches, capacity);
    if (pack.windows_known) fit_capacity_to_windows(pack);
    const std::vector<BinOf> starts = starts_of(pack, capacity, first);
    Bins bins = solve_bins(pack.documents, pack.problem, starts, options, plan.steps.size(), plan);
    append_steps(bins, micro_batches, options, plan);
    note_carried(batches, plan.steps.size() - batches.size(), plan);
  }
  note_programs(plan);
  return plan;
}

}  // namespace equipoise
