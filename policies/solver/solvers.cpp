#include "policies/solver/solvers.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "policies/base/text.h"
#include "policies/least_loaded.h"
#include "policies/loader.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/wlb.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr double kOfExchange = 4;  // units of work of an exchange that is evaluated

// Compares the maximum first, then the sum over steps.
bool better(const AssignmentProblem& problem, const BinOf& a, const BinOf& b) {
  const double most_a = heaviest_bin(problem, a);
  const double most_b = heaviest_bin(problem, b);
  return most_a != most_b ? most_a < most_b : sum_over_steps(problem, a) < sum_over_steps(problem, b);
}

SolverReport report_of(const AssignmentResult& result, std::size_t step, bool over_steps) {
  return {static_cast<int>(step), over_steps, result.objective, result.bound, result.seconds, result.optimal};
}

// Searches with what is left of the step's seconds and of the plan's work.
AssignmentResult search_within(const AssignmentProblem& problem, const BinOf& start, double seconds,
                               SolverWork& work) {
  const SolverLimits limits = work.next(program_rows(problem), program_elements(problem), seconds);
  AssignmentResult result = solve_assignment(problem, start, limits);
  work.ended(result.searched, result.optimal);
  return result;
}

BinOf solve(const AssignmentProblem& problem, std::span<const BinOf> starts, const PackOptions& options,
            std::size_t step, SolverWork& work, Plan& plan) {
  BinOf best = starts.front();
  for (const BinOf& start : starts.subspan(1))
    if (better(problem, start, best)) best = start;
  BinOf swapped = best;
  // This lowers the maximum, but may raise the sum.
  improve_by_swaps(problem, swapped, work.evaluations(kMostEvaluations, kOfExchange));
  if (better(problem, swapped, best)) best = std::move(swapped);

  AssignmentProblem largest = problem;
  largest.bins_a_step = 0;
  const double seconds = options.of<SolverOptions>().time_limit_seconds;
  const bool second = problem.steps() > 1;
  const AssignmentResult first = search_within(largest, best, second ? seconds / 2 : seconds, work);
  plan.solver.push_back(report_of(first, step, false));
  if (better(problem, first.bin_of, best)) best = first.bin_of;
  if (!second) return best;

  AssignmentProblem over_steps = problem;
  over_steps.heaviest_allowed = heaviest_bin(problem, best);
  const double of_sums = static_cast<double>(problem.bins) * kOfExchange;
  improve_steps_by_swaps(over_steps, best, work.evaluations(kMostEvaluations, of_sums));
  AssignmentResult result = search_within(over_steps, best, std::max(0.0, seconds - first.seconds), work);
  plan.solver.push_back(report_of(result, step, true));
  return std::move(result.bin_of);
}

// Solves two programs within the limits of `options` together. The first minimises the heaviest bin. Where
// the bins belong to several steps (problem.bins_a_step), the second keeps that maximum and minimises the sum
// over steps of each step's heaviest bin. Both start from the best of `starts` (maximum first, then the sum),
// improved by swaps, and never return anything worse. The second is needed since one full-window document
// fixes the maximum, so that every assignment is optimal for the first.
//
// Returns bins heaviest first, ties in the order of their first document, so that bin j belongs to step j div
// bins_a_step. Documents in a bin keep their order. Adds reports to `plan` for `step`.
Bins solve_bins(std::span<const Slice> documents, const AssignmentProblem& problem,
                std::span<const BinOf> starts, const PackOptions& options, std::size_t step, SolverWork& work,
                Plan& plan) {
  Bins bins(problem.bins);
  if (documents.empty()) return bins;
  const BinOf bin_of = solve(problem, starts, options, step, work, plan);

  std::vector<std::size_t> first(problem.bins, std::numeric_limits<std::size_t>::max());
  for (std::size_t i = documents.size(); i-- > 0;) first[bin_of[i]] = i;
  const std::vector<double> weights = bin_weights(problem, bin_of);
  const auto order =
      positions_by(problem.bins, [&](std::size_t b) { return std::pair(-weights[b], first[b]); });
  std::vector<std::size_t> place(problem.bins);
  for (std::size_t p = 0; p < order.size(); ++p) place[order[p]] = p;
  for (std::size_t i = 0; i < documents.size(); ++i) bins[place[bin_of[i]]].push_back(documents[i]);
  return bins;
}

}  // namespace

// Fitted to CBC: the root takes 20 to 150 us per element of the matrix in small programs, where cuts and
// probing take most of it, and more with each row in large ones. A node takes 1 us per element.
constexpr double kOfRoot = 1e5, kOfRow = 6, kOfNode = 2000;

std::int64_t SolverWork::evaluations(std::int64_t most, double work) {
  if (!counts()) return most;
  const double share = left_ / static_cast<double>(searches_) / 2;  // the rest is for the search
  const auto count = static_cast<std::int64_t>(std::min(static_cast<double>(most), share / work));
  left_ -= static_cast<double>(count) * work;
  return count;
}

SolverLimits SolverWork::next(double rows, double elements, double seconds) {
  SolverLimits limits{seconds, options_.cancel, options_.solver, options_.node_limit};
  root_ = elements * (kOfRoot + kOfRow * rows);
  all_ = 0;
  const double share = left_ / static_cast<double>(searches_);
  searches_ = std::max<std::size_t>(1, searches_ - 1);
  if (!counts() || root_ > share) return limits;
  const double node = elements * kOfNode;
  limits.nodes = 1 + static_cast<std::int64_t>(std::min((share - root_) / std::max(1.0, node), 1e9));
  all_ = root_ + static_cast<double>(limits.nodes - 1) * node;
  return limits;
}

void SolverWork::ended(bool searched, bool proven) {
  if (searched) left_ -= proven ? root_ : all_;
  if (proven || (searched && !counts())) return;
  ++(searched ? stopped_ : unsearched_);
}

void SolverWork::note_on(Plan& plan) const {
  std::size_t optimal = 0;
  double gap = 0;
  for (const SolverReport& report : plan.solver) {
    optimal += report.optimal ? 1 : 0;
    gap = std::max(gap, report.gap());
  }
  plan.notes.push_back(
      {"programs_proven", "", {{"optimal", optimal}, {"programs", plan.solver.size()}, {"gap", gap}}});
  if (stopped_ + unsearched_ > 0)
    plan.notes.push_back({"solver_work", "", {{"stopped", stopped_}, {"unsearched", unsearched_}}});
}

// Fixed-length packing by an integer program (WLB-LLM section 4.1, Eq. 1-2; Table 2 "fixed solver").
//
// Minimises the largest sum of len^2 of a micro-batch. Every document is placed once, and a micro-batch holds
// at most one window of tokens. `pack_window` global batches are packed together into pack_window * N bins;
// then, with that maximum kept, the sum over steps of each step's largest bin is minimised (solvers.h). Bins
// go to steps sorted by sum of len^2, largest first, N per step; inside a step, position p goes to lane p mod
// lanes.
//
// Full windows leave no slack, so even a feasible packing may be hard to find. The search starts from the
// better of plain's windows and fixed-greedy over the same pack window (maximum first, then the sum), and its
// result is never worse.
//
// Departures: the paper calls Gurobi, this policy CBC or HiGHS. Where a limit ends the search, the incumbent
// is used and its gap reported. The plan is a pure function of its input unless `time_limit` is set and hit.
// Document batches have no windows to start from; they are refused where
// fixed-greedy finds no room.
//
// Cost: limited by SolverWork, else exponential in the worst case; SolverReport has the time taken.

namespace {

// The documents of one pack window as an integer program, with the windows in which they arrived.
struct PackWindow {
  std::vector<Slice> documents;
  AssignmentProblem problem;
  BinOf windows;
  bool windows_known = true;
};

PackWindow pack_window_of(const Batches& batches, std::size_t micro_batches, std::int64_t capacity) {
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

// Where the user gives fewer micro-batches than the windows need, plain's are longer, and these may be too.
void fit_capacity_to_windows(PackWindow& pack) {
  for (const std::int64_t tokens : bin_tokens(pack.problem, pack.windows))
    pack.problem.capacity = std::max(pack.problem.capacity, tokens);
}

// The packing of fixed-greedy for the same documents; `nowhere` receives the first document without room.
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

// The starts of the search: plain's windows, and fixed-greedy's packing if it places everything.
std::vector<BinOf> starts_of(const PackWindow& pack, std::int64_t capacity, std::size_t step) {
  std::vector<BinOf> starts;
  if (pack.windows_known) starts.push_back(pack.windows);
  std::optional<std::size_t> nowhere;
  BinOf greedy = greedy_start(pack, capacity, nowhere);
  if (!nowhere) starts.push_back(std::move(greedy));
  if (!starts.empty()) return starts;
  const Slice& slice = pack.documents[*nowhere];
  throw UnplaceableDocument("step " + std::to_string(step) + ": document " + std::to_string(slice.document) +
                                " of " + std::to_string(slice.tokens()) + " tokens finds no room in " +
                                std::to_string(pack.problem.bins) + " micro-batches of " +
                                std::to_string(capacity) +
                                " tokens; use window batches, more micro-batches or a longer context_window",
                            slice.document, slice.tokens(), capacity);
}

void append_steps(Bins& bins, std::size_t micro_batches, const PackOptions& options, Plan& plan) {
  for (std::size_t first = 0; first < bins.size(); first += micro_batches) {
    Bins own(micro_batches);
    for (std::size_t p = 0; p < micro_batches; ++p) own[p] = std::move(bins[first + p]);
    plan.steps.push_back(step_of_bins(std::move(own), options));
  }
}

// A document waits from the step of its batch to the step of its bin.
void note_carried(const Batches& batches, std::size_t first_step, Plan& plan) {
  for (std::size_t s = 0; s + 1 < batches.size(); ++s) {
    std::vector<Slice> waiting;
    for (std::size_t k = 0; k <= s; ++k) {
      const GlobalBatch batch = batches[k];
      waiting.insert(waiting.end(), batch.slices.begin(), batch.slices.end());
    }
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
  const std::size_t windows = (problem.batches.size() + width - 1) / width;
  SolverWork work(options.of<SolverOptions>(), width > 1 ? 2 * windows : windows);
  for (std::size_t first = 0; first < problem.batches.size(); first += width) {
    const Batches batches = problem.batches.subspan(first, std::min(width, problem.batches.size() - first));
    const std::int64_t capacity = micro_batch_capacity(options);
    PackWindow pack = pack_window_of(batches, micro_batches, capacity);
    if (pack.windows_known) fit_capacity_to_windows(pack);
    const std::vector<BinOf> starts = starts_of(pack, capacity, first);
    Bins bins = solve_bins(pack.documents, pack.problem, starts, options, plan.steps.size(), work, plan);
    append_steps(bins, micro_batches, options, plan);
    note_carried(batches, plan.steps.size() - batches.size(), plan);
  }
  work.note_on(plan);
  return plan;
}

// Variable-length packing by an integer program (WLB-LLM section 4.2). It is fixed-solver with the whole work
// W(d) instead of len^2 and L_max instead of the window.
//
// wlb decides which documents a step holds (with the same queues and carried documents), and its packing is
// the start. The solver looks for a better assignment of those documents to the step's N micro-batches and
// never returns a worse one. The objective is the largest bin of the step. Bins go to lanes as wlb's do:
// largest W first, to the least loaded lane with a free place.
//
// Cost: that of wlb and one integer program per step; see SolverReport.

static void solve_step(Step& step, std::size_t index, const PackingProblem& problem, SolverWork& work,
                       Plan& plan) {
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
  program.tokens = lengths_of(documents);
  program.weight = work_of(documents, problem.workload);
  Bins bins = solve_bins(documents, program, std::span(&start, 1), problem.options, index, work, plan);

  std::vector<double> weights;
  for (const std::vector<Slice>& bin : bins) {
    weights.push_back(0);
    for (const double w : work_of(bin, problem.workload)) weights.back() += w;
  }
  step.lanes = step_of_bins_by_weight(std::move(bins), weights, problem.options).lanes;
}

Plan plan_varlen_solver(const PackingProblem& problem) {
  Plan plan = plan_wlb(problem);
  SolverWork work(problem.options.of<SolverOptions>(), plan.steps.size());
  for (std::size_t s = 0; s < plan.steps.size(); ++s) solve_step(plan.steps[s], s, problem, work, plan);
  work.note_on(plan);
  return plan;
}

}  // namespace equipoise
