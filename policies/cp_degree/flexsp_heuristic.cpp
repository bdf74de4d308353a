// Solves FlexSP's problem fast. The paper solves a MILP per micro-batch; the heuristic has four steps:
//   1. Every layout has a lower bound (areas over GPUs, slowest document). The layouts within 1% of the least
//      bound are candidates, those with most groups first, since small groups communicate least. If they are
//      few, those of the next bounds are added; if they are many, 32 evenly spaced ones are taken.
//   2. Greedy on each: documents go longest first, each to the group that finishes first with it. A layout is
//      dropped when it is slower than the fourth best; the search ends within 1% of the least bound.
//   3. Groups of the best layout are split and merged while the greedy assignment gets faster.
//   4. The 4 best are refined: documents of the slowest group move or swap while that makes it faster, within
//      a fixed number of evaluations.
// Cost: O(layouts * groups + 100 * n * log(groups) + evaluations). Nothing depends on the clock.
#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <numeric>

#include "policies/cp_degree/flexsp.h"
#include "policies/least_loaded.h"

namespace equipoise {
namespace {

constexpr double kCloseEnough = 1.01;
constexpr std::size_t kLayoutsTried = 32;
constexpr int kNeighboursTried = 64;
constexpr std::size_t kLayoutsRefined = 4;
constexpr std::int64_t kEvaluations = 400'000;  // evaluated exchanges per refined layout
constexpr double kNever = std::numeric_limits<double>::infinity();

// The layouts in the order of trial, and the least bound.
struct Candidates {
  std::vector<GroupLayout> layouts;
  double least_bound = kNever;
};

Candidates promising_layouts(const FlexspProblem& problem, std::span<const GroupLayout> layouts) {
  LayoutBounds bounds(problem);
  std::vector<double> bound;
  Candidates candidates;
  for (const GroupLayout& layout : layouts) {
    bound.push_back(bounds.of(layout));
    candidates.least_bound = std::min(candidates.least_bound, bound.back());
  }
  const double close = candidates.least_bound * kCloseEnough;
  const auto order = positions_by(layouts.size(), [&](std::size_t i) { return std::max(bound[i], close); });
  std::size_t promising = 0;  // layouts within 1% of the least bound, or the next best if those are few
  while (promising < order.size() && bound[order[promising]] < kNever &&
         (promising < kLayoutsTried || bound[order[promising]] <= close))
    ++promising;
  const std::size_t tried = std::min(promising, kLayoutsTried);
  for (std::size_t k = 0; k < tried; ++k) candidates.layouts.push_back(layouts[order[k * promising / tried]]);
  return candidates;
}

// The groups of one degree while the greedy search assigns documents.
struct AlikeGroups {
  std::size_t first;  // in the layout
  int degree;
  LeastLoaded<double> times;
};

std::vector<AlikeGroups> alike_groups(const GroupLayout& layout) {
  std::vector<AlikeGroups> all;
  for (std::size_t first = 0, end = 0; first < layout.size(); first = end) {
    while (end < layout.size() && layout[end] == layout[first]) ++end;
    all.push_back({first, layout[first], LeastLoaded<double>(end - first)});
  }
  return all;
}

// The time of the slowest group of the greedy assignment; kNever if it is not below `give_up`. Documents come
// slowest first, so of equal groups the one that ends first with the next document is the one that ends
// first.
double assign(const FlexspProblem& problem, const GroupLayout& layout, double give_up,
              std::vector<std::uint32_t>& group_of) {
  const LayoutView view(problem, layout);
  std::vector<GroupLoad> load(layout.size());
  std::vector<AlikeGroups> alike = alike_groups(layout);
  double slowest = 0;
  group_of.resize(problem.documents());
  for (std::size_t i = 0; i < problem.documents(); ++i) {
    AlikeGroups* best = nullptr;
    double best_time = kNever;
    for (AlikeGroups& groups : alike) {
      if (groups.degree < problem.least_degree[i]) break;
      const std::size_t g = groups.first + groups.times.least();
      const double time = view.with(load[g], view.time(g, i));
      if (time < best_time) {
        best_time = time;
        best = &groups;
      }
    }
    if (best == nullptr) return kNever;
    const std::size_t least = best->times.least(), g = best->first + least;
    load[g].add(view.time(g, i));
    best->times.set(least, best_time);
    group_of[i] = static_cast<std::uint32_t>(g);
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
    double slower = kNever;  // time of the slower of the two groups afterwards
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

  // A document of another group that the slowest group could take, and what changes where it leaves.
  struct Partner {
    std::size_t document;
    std::size_t group;
    double time;       // on the slowest group
    GroupLoad others;  // of its own group without it
  };

  void list_partners(std::size_t from) {
    partners_.clear();
    partners_up_to_.assign(load_.size(), 0);
    for (std::size_t k = 0; k < problem_.documents(); ++k) {
      const std::size_t own = group(k);
      if (own == from || !fits(k, from)) continue;
      partners_.push_back({k, own, view_.time(from, k), without(own, k)});
      ++partners_up_to_[own];
    }
    std::partial_sum(partners_up_to_.begin(), partners_up_to_.end(), partners_up_to_.begin());
  }

  // The groups that could take the document, which are the first ones.
  [[nodiscard]] std::size_t fitting_groups(std::size_t document) const {
    const auto fit = [&](int degree) { return degree >= problem_.least_degree[document]; };
    const GroupLayout& layout = solution_.layout;
    return static_cast<std::size_t>(std::partition_point(layout.begin(), layout.end(), fit) - layout.begin());
  }

  // All partners with which the slower group of an exchange may end before `bound`. `rest`: the slowest group
  // without the document. Partners come slowest first: the first ones take the slowest group too long, and
  // after the last ones their own groups take too long with the document.
  [[nodiscard]] std::span<const Partner> within_reach(std::size_t document, const GroupLoad& rest,
                                                      double bound) const {
    const auto first = std::partition_point(partners_.begin(), partners_.end(), [&](const Partner& partner) {
      return view_.with(rest, partner.time) >= bound;
    });
    auto end = first;
    const std::size_t groups = fitting_groups(document);
    for (std::size_t g = 0, next = 0; g < groups; g = next) {
      double least = kNever;  // of the groups of one degree
      for (; next < groups && solution_.layout[next] == solution_.layout[g]; ++next)
        least = std::min(least, load_[next].sum);
      end = std::partition_point(end, partners_.end(), [&](const Partner& partner) {
        return least - view_.time(g, partner.document) + view_.time(g, document) < bound;
      });
    }
    return std::span<const Partner>(partners_).subspan(static_cast<std::size_t>(first - partners_.begin()),
                                                       static_cast<std::size_t>(end - first));
  }

  [[nodiscard]] GroupLoad without(std::size_t g, std::size_t document) const {
    const double time = view_.time(g, document);
    return {load_[g].sum - time, time > 0 ? load_[g].largest_without(time) : load_[g].largest};
  }

  bool improve_slowest() {
    const std::size_t from = slowest_group();
    list_partners(from);
    Exchange best;
    best.slower = view_.time_of(load_[from]) * (1 - 1e-12);
    for (std::size_t i = 0; i < problem_.documents() && evaluations_ < kEvaluations; ++i) {
      if (group(i) != from) continue;
      const GroupLoad rest = without(from, i);
      const auto consider = [&](std::size_t partner, double back, std::size_t to, const GroupLoad& others) {
        const double slower = std::max(view_.with(rest, back), view_.with(others, view_.time(to, i)));
        if (slower < best.slower) best = {i, partner, to, slower};
      };
      const std::size_t groups = fitting_groups(i);
      for (std::size_t to = 0; to < groups; ++to)
        if (to != from) consider(kNobody, 0, to, load_[to]);
      for (const Partner& partner : within_reach(i, rest, best.slower))
        if (partner.group < groups) consider(partner.document, partner.time, partner.group, partner.others);
      // The limit counts all of them, so that what is passed over changes no result.
      evaluations_ += static_cast<std::int64_t>(groups - 1 + partners_up_to_[groups - 1]);
    }
    if (best.document == kNobody) return false;
    solution_.group_of[best.document] = static_cast<std::uint32_t>(best.to);
    if (best.partner != kNobody) solution_.group_of[best.partner] = static_cast<std::uint32_t>(from);
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
  std::vector<Partner> partners_;
  std::vector<std::size_t> partners_up_to_;  // by group: partners in the groups up to it
  std::int64_t evaluations_ = 0;
};

// The layouts that differ from `layout` by one group split in two or two equal groups merged into one.
std::vector<GroupLayout> neighbours_of(const GroupLayout& layout, int max_degree) {
  std::vector<GroupLayout> all;
  const auto sorted = [](GroupLayout changed) {
    std::stable_sort(changed.begin(), changed.end(), std::greater<>());
    return changed;
  };
  for (std::size_t g = 0; g < layout.size(); ++g) {
    const int degree = layout[g];
    if (g > 0 && layout[g - 1] == degree) continue;  // groups of equal degree are equivalent
    if (degree > 1) {
      GroupLayout split = layout;
      split[g] = degree / 2;
      split.push_back(degree / 2);
      all.push_back(sorted(std::move(split)));
    }
    if (2 * degree <= max_degree && g + 1 < layout.size() && layout[g + 1] == degree) {
      GroupLayout merged = layout;
      merged[g] = 2 * degree;
      merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(g) + 1);
      all.push_back(sorted(std::move(merged)));
    }
  }
  return all;
}

// The best few greedy solutions, fastest first.
class Shortlist {
 public:
  explicit Shortlist(const FlexspProblem& problem) : problem_(problem) {}

  void try_layout(const GroupLayout& layout) {
    const double give_up = best_.size() < kLayoutsRefined ? kNever : best_.back().slowest;
    const double slowest = assign(problem_, layout, give_up, group_of_);
    if (slowest >= give_up) return;
    const auto at = std::ranges::find_if(best_, [&](const FlexspSolution& s) { return slowest < s.slowest; });
    best_.insert(at, {layout, group_of_, slowest, false});
    if (best_.size() > kLayoutsRefined) best_.pop_back();
  }

  // Moves from the best layout to its best neighbour while that is faster and not yet `good_enough`.
  void climb(double good_enough) {
    int tries = kNeighboursTried;
    double before = kNever;
    while (tries > 0 && best_.front().slowest < before && best_.front().slowest > good_enough) {
      before = best_.front().slowest;
      for (const GroupLayout& layout : neighbours_of(best_.front().layout, problem_.grid.max_degree))
        if (tries-- > 0) try_layout(layout);
    }
  }

  [[nodiscard]] std::vector<FlexspSolution>& best() { return best_; }

 private:
  const FlexspProblem& problem_;
  std::vector<FlexspSolution> best_;
  std::vector<std::uint32_t> group_of_;
};

}  // namespace

FlexspSolution flexsp_heuristic(const FlexspProblem& problem, std::span<const GroupLayout> layouts) {
  const Candidates candidates = promising_layouts(problem, layouts);
  const double good_enough = candidates.least_bound * kCloseEnough;
  Shortlist shortlist(problem);
  for (const GroupLayout& layout : candidates.layouts) {
    shortlist.try_layout(layout);
    if (!shortlist.best().empty() && shortlist.best().front().slowest <= good_enough) break;
  }
  std::vector<FlexspSolution>& best = shortlist.best();
  assert(!best.empty());  // the hard limit lets every document fit the largest group
  shortlist.climb(good_enough);
  for (FlexspSolution& solution : best) Refinement(problem, solution).run();
  std::ranges::stable_sort(best, {}, &FlexspSolution::slowest);
  best.front().proven = best.front().slowest <= candidates.least_bound * (1 + 1e-12);
  return best.front();
}

}  // namespace equipoise
