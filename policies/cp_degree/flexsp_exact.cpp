// FlexSP's problem exactly, for small steps: branch and bound. Layouts by rising bound; in each, documents
// longest first to every group in turn. A branch is cut when a group is no faster than the best solution, or
// when even an even spread of the least GPU time left would not be. Groups of equal degree and equal load are
// interchangeable, so only the first of them is tried.
// Cost: exponential in the documents; up to about 14 on 16 GPUs take well under a second.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policies/cp_degree/flexsp_problem.h"
#include "policies/cp_degree/group_loads.h"

namespace equipoise {
namespace {

constexpr double kFaster = 1 - 1e-12;  // below this a gain is rounding

class ExactSearch {
 public:
  ExactSearch(const FlexspProblem& problem, FlexspSolution start, std::int64_t node_limit)
      : problem_(problem), best_(std::move(start)), nodes_left_(node_limit) {}

  void run() {
    std::vector<GroupLayout> layouts = group_layouts(problem_.grid);
    LayoutBounds bounds(problem_);
    std::vector<double> bound;
    for (const GroupLayout& layout : layouts) bound.push_back(bounds.of(layout));
    std::vector<std::size_t> order(layouts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return bound[a] < bound[b]; });
    for (const std::size_t i : order) {
      if (bound[i] >= best_.slowest * kFaster) break;
      search_layout(layouts[i]);
      if (nodes_left_ <= 0) return;
    }
    best_.proven = true;
  }

  FlexspSolution take() { return std::move(best_); }

 private:
  void search_layout(const GroupLayout& layout) {
    const LayoutView view(problem_, layout);
    // Least GPU time of documents i and later in this layout.
    area_left_.assign(problem_.documents() + 1, 0);
    for (std::size_t i = problem_.documents(); i-- > 0;) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t g = 0; g < layout.size(); ++g)
        if (layout[g] >= problem_.least_degree[i]) least = std::min(least, view.time(g, i) * layout[g]);
      area_left_[i] = area_left_[i + 1] + least;
    }
    group_of_.assign(problem_.documents(), 0);
    std::vector<GroupLoad> load(layout.size());
    branch(layout, view, load, 0, 0, 0);
  }

  void branch(const GroupLayout& layout, const LayoutView& view, std::vector<GroupLoad>& load, std::size_t i,
              double area, double slowest) {
    if (--nodes_left_ <= 0) return;
    if (std::max(slowest, (area + area_left_[i]) / problem_.grid.gpus) >= best_.slowest * kFaster) return;
    if (i == problem_.documents()) {
      best_ = {layout, group_of_, slowest, false};
      return;
    }
    for (std::size_t g = 0; g < layout.size() && layout[g] >= problem_.least_degree[i]; ++g) {
      const auto same = [&](std::size_t other) {
        return layout[other] == layout[g] && load[other] == load[g];
      };
      bool repeated = false;
      for (std::size_t other = 0; other < g; ++other) repeated = repeated || same(other);
      if (repeated) continue;
      const double time = view.time(g, i);
      const GroupLoad before = load[g];
      load[g].add(time);
      group_of_[i] = static_cast<std::uint16_t>(g);
      branch(layout, view, load, i + 1, area + time * layout[g], std::max(slowest, view.time_of(load[g])));
      load[g] = before;
    }
  }

  const FlexspProblem& problem_;
  FlexspSolution best_;
  std::int64_t nodes_left_;
  std::vector<double> area_left_;
  std::vector<std::uint16_t> group_of_;
};

}  // namespace

FlexspSolution flexsp_exact(const FlexspProblem& problem, std::int64_t node_limit) {
  ExactSearch search(problem, flexsp_heuristic(problem), node_limit);
  search.run();
  return search.take();
}

}  // namespace equipoise
