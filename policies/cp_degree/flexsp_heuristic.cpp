// FlexSP's problem fast. The paper solves a MILP per micro-batch; here:
//   1. Every layout has a bound that no assignment beats (areas over GPUs, slowest document). The layouts
//   within
//      1% of the least bound come first, most groups first, for small groups communicate least; then the rest
//      by bound.
//   2. Greedy on the first 64: documents longest first, each to the group that finishes first with it. A
//   layout
//      is given up when it is slower than the best so far; the search ends within 1% of the least bound.
//   3. The 4 best are refined: documents of the slowest group move or trade places while that makes it
//   faster,
//      within a fixed number of evaluations.
// Cost: O(layouts + 64 * n * groups + evaluations).
#include <algorithm>
#include <limits>
#include <numeric>

#include "policies/cp_degree/flexsp_problem.h"
#include "policies/cp_degree/group_loads.h"

namespace equipoise {
namespace {

constexpr double kCloseEnough = 1.01;
constexpr std::size_t kLayoutsTried = 64;
constexpr std::size_t kLayoutsRefined = 4;
constexpr std::int64_t kEvaluations = 400'000;  // of exchanges, a refined layout
constexpr double kNever = std::numeric_limits<double>::infinity();

// Layouts in the order in which they are tried, and the least bound.
struct Candidates {
  std::vector<GroupLayout> layouts;
  double least_bound = kNever;
};

Candidates promising_layouts(const FlexspProblem& problem) {
  std::vector<GroupLayout> layouts = group_layouts(problem.grid);
  LayoutBounds bounds(problem);
  std::vector<double> bound;
  Candidates candidates;
  for (const GroupLayout& layout : layouts) {
    bound.push_back(bounds.of(layout));
    candidates.least_bound = std::min(candidates.least_bound, bound.back());
  }
  const double close = candidates.least_bound * kCloseEnough;
  std::vector<std::size_t> order(layouts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::max(bound[a], close) < std::max(bound[b], close);
  });
  for (const std::size_t i : order) {
    if (candidates.layouts.size() == kLayoutsTried || bound[i] == kNever) break;
    candidates.layouts.push_back(std::move(layouts[i]));
  }
  return candidates;
}

// Slowest group of the greedy assignment, or kNever once it is not faster than `give_up`.
double assign(const FlexspProblem& problem, const GroupLayout& layout, double give_up,
              std::vector<std::uint16_t>& group_of) {
  const LayoutView view(problem, layout);
  std::vector<GroupLoad> load(layout.size());
  double slowest = 0;
  group_of.resize(problem.documents());
  for (std::size_t i = 0; i < problem.documents(); ++i) {
    std::size_t best = layout.size();
    double best_time = kNever;
    for (std::size_t g = 0; g < layout.size() && layout[g] >= problem.least_degree[i]; ++g) {
      const double time = view.with(load[g], view.time(g, i), 0);
      if (time < best_time) {
        best_time = time;
        best = g;
      }
    }
    if (best == layout.size()) return kNever;
    load[best].add(view.time(best, i));
    group_of[i] = static_cast<std::uint16_t>(best);
    slowest = std::max(slowest, best_time);
    if (slowest >= give_up) return kNever;
  }
  return slowest;
}

class Refinement {
 public:
  Refinement(const FlexspProblem& problem, FlexspSolution& solution)
      : problem_(problem),
        solution_(solution),
        view_(problem, solution.layout),
        load_(solution.layout.size()) {
    for (std::size_t i = 0; i < problem.documents(); ++i) load_[group(i)].add(view_.time(group(i), i));
  }

  void run() {
    while (evaluations_ < kEvaluations && improve_slowest()) {
    }
    solution_.slowest = view_.time_of(load_[slowest_group()]);
  }

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  struct Exchange {
    std::size_t document = kNobody;
    std::size_t partner = kNobody;
    std::size_t to = 0;
    double slower = kNever;  // of the two groups, afterwards
  };

  [[nodiscard]] std::size_t group(std::size_t i) const { return solution_.group_of[i]; }

  [[nodiscard]] std::size_t slowest_group() const {
    std::size_t slowest = 0;
    for (std::size_t g = 1; g < load_.size(); ++g)
      if (view_.time_of(load_[g]) > view_.time_of(load_[slowest])) slowest = g;
    return slowest;
  }

  [[nodiscard]] bool fits(std::size_t document, std::size_t g) const {
    return solution_.layout[g] >= problem_.least_degree[document];
  }

  bool improve_slowest() {
    const std::size_t from = slowest_group();
    Exchange best;
    const auto consider = [&](std::size_t i, std::size_t partner, std::size_t to) {
      ++evaluations_;
      const double left = view_.time(from, i);
      const double joined = view_.time(to, i);
      const double back = partner == kNobody ? 0 : view_.time(from, partner);
      const double gone = partner == kNobody ? 0 : view_.time(to, partner);
      const double slower =
          std::max(view_.with(load_[from], back, left), view_.with(load_[to], joined, gone));
      if (slower < best.slower) best = {i, partner, to, slower};
    };
    for (std::size_t i = 0; i < problem_.documents() && evaluations_ < kEvaluations; ++i) {
      if (group(i) != from) continue;
      for (std::size_t to = 0; to < load_.size(); ++to)
        if (to != from && fits(i, to)) consider(i, kNobody, to);
      for (std::size_t k = 0; k < problem_.documents(); ++k)
        if (group(k) != from && fits(i, group(k)) && fits(k, from)) consider(i, k, group(k));
    }
    if (!(best.slower < view_.time_of(load_[from]) * (1 - 1e-12))) return false;
    solution_.group_of[best.document] = static_cast<std::uint16_t>(best.to);
    if (best.partner != kNobody) solution_.group_of[best.partner] = static_cast<std::uint16_t>(from);
    reload(from, best.to);
    return true;
  }

  void reload(std::size_t a, std::size_t b) {
    load_[a] = load_[b] = {};
    for (std::size_t i = 0; i < problem_.documents(); ++i)
      if (group(i) == a || group(i) == b) load_[group(i)].add(view_.time(group(i), i));
  }

  const FlexspProblem& problem_;
  FlexspSolution& solution_;
  LayoutView view_;
  std::vector<GroupLoad> load_;
  std::int64_t evaluations_ = 0;
};

}  // namespace

FlexspSolution flexsp_heuristic(const FlexspProblem& problem) {
  const Candidates candidates = promising_layouts(problem);
  std::vector<FlexspSolution> best;  // by greedy time, at most kLayoutsRefined
  std::vector<std::uint16_t> group_of;
  for (const GroupLayout& layout : candidates.layouts) {
    const double give_up = best.size() < kLayoutsRefined ? kNever : best.back().slowest;
    const double slowest = assign(problem, layout, give_up, group_of);
    if (slowest >= give_up) continue;
    const auto at =
        std::find_if(best.begin(), best.end(), [&](const FlexspSolution& s) { return slowest < s.slowest; });
    best.insert(at, {layout, group_of, slowest, false});
    if (best.size() > kLayoutsRefined) best.pop_back();
    if (best.front().slowest <= candidates.least_bound * kCloseEnough) break;
  }
  for (FlexspSolution& solution : best) Refinement(problem, solution).run();
  std::stable_sort(best.begin(), best.end(),
                   [](const FlexspSolution& a, const FlexspSolution& b) { return a.slowest < b.slowest; });
  best.front().proven = best.front().slowest <= candidates.least_bound * (1 + 1e-12);
  return best.front();
}

}  // namespace equipoise
