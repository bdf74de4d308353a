// FlexSP (arXiv 2412.01523) chooses one layout of CP groups for the step and places each document whole on
// one group, so that the slowest group is as fast as possible. It uses a fast heuristic
// (flexsp_heuristic.cpp) or, with `exact`, branch and bound (below). A document's time on a group of d ranks
// is W / d unless the cost includes communication. A document needs a group whose ranks hold it. A group runs
// its documents as micro-batches of at most tokens-per-rank * degree tokens, longest documents first. Through
// a pipeline a lane takes sum + (stages - 1) * largest over its micro-batches. Packing does not change the
// sum, so no micro-batch is made longer than the lane's longest document. Departures: the paper first cuts
// the batch into micro-batches that fit in memory and gives each its own layout; here one layout serves the
// step, and memory only limits what runs at once. The paper's MILP groups lengths into buckets.
#include "policies/cp_degree/flexsp.h"

#include <limits>
#include <string>
#include <utility>

#include "policies/least_loaded.h"
#include "policies/steps.h"

namespace equipoise {

constexpr std::int64_t kExactNodes = 20'000'000;

static std::size_t exponent_of(int degree) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(degree)));
}

// `order` receives the index in the batch of each document of the problem.
static FlexspProblem problem_of(const GlobalBatch& batch, const CpGrid& grid, const Workload& workload,
                                std::vector<std::uint32_t>& order) {
  const std::vector<std::int64_t> lengths = lengths_of(batch.slices);
  order = longest_first(lengths);
  FlexspProblem problem;
  problem.grid = grid;
  for (const std::uint32_t i : order) {
    problem.tokens.push_back(lengths[i]);
    problem.least_degree.push_back(grid.power_needed(lengths[i]));
  }
  for (int degree = 1; degree <= grid.max_degree; degree *= 2) {
    problem.times.emplace_back(lengths.size());
    workload.on_group(problem.tokens, degree, problem.times.back());
  }
  return problem;
}

// `documents`: those of the group.
static std::vector<MicroBatch> micro_batches_of(const FlexspProblem& problem, int degree,
                                                std::span<const std::uint32_t> documents,
                                                const GlobalBatch& batch,
                                                const std::vector<std::uint32_t>& order) {
  const std::vector<double>& times = problem.times[exponent_of(degree)];
  const std::int64_t room = problem.grid.tokens_per_rank * degree;
  double longest = 0;
  for (const std::uint32_t i : documents) longest = std::max(longest, times[i]);

  std::vector<MicroBatch> micro_batches(1);
  std::int64_t tokens = 0;
  double time = 0;
  for (const std::uint32_t i : documents) {
    const bool full = tokens + problem.tokens[i] > room;
    const bool slow = problem.grid.stages > 1 && time + times[i] > longest;
    if (!micro_batches.back().slices.empty() && (full || slow)) {
      micro_batches.emplace_back();
      tokens = 0;
      time = 0;
    }
    micro_batches.back().slices.push_back(batch.slices[order[i]]);
    tokens += problem.tokens[i];
    time += times[i];
  }
  return micro_batches;
}

Plan plan_flexsp(const PackingProblem& packing) {
  const bool exact = packing.options.of<FlexspOptions>().exact;
  const CpGrid grid = CpGrid::of(packing.options);
  const std::vector<GroupLayout> layouts = group_layouts(grid);
  Plan plan;
  int unproven = 0;
  for (const GlobalBatch& batch : packing.batches) {
    std::vector<std::uint32_t> order;
    const FlexspProblem problem = problem_of(batch, grid, packing.workload, order);
    const FlexspSolution solution =
        exact ? flexsp_exact(problem, layouts, kExactNodes) : flexsp_heuristic(problem, layouts);
    unproven += solution.proven ? 0 : 1;
    const Packs groups = gather_packs(positions<std::uint32_t>(problem.documents()), solution.group_of,
                                      solution.layout.size());
    Step step;
    for (std::size_t g = 0; g < solution.layout.size(); ++g) {
      const int degree = solution.layout[g];
      step.lanes.push_back({degree, micro_batches_of(problem, degree, groups.of(g), batch, order), 0});
    }
    add_step(packing, std::move(step), plan);
  }
  if (exact && unproven > 0)
    plan.notes.push_back({"steps_not_proven",
                          "",
                          {{"steps", unproven}, {"of", packing.batches.size()}, {"nodes", kExactNodes}}});
  return plan;
}

// Solves FlexSP's problem exactly for small steps by branch and bound. Layouts come by rising bound; in each,
// documents go longest first to every group in turn. A branch is cut when a group is no faster than the best
// solution, or when an even spread of the least remaining GPU time would be no faster. Groups of equal degree
// and equal load are interchangeable, so only the first of them is tried. Cost: exponential in the documents;
// up to about 14 on 16 GPUs take well under a second.

namespace {

constexpr double kFaster = 1 - 1e-12;  // a smaller gain is rounding

class ExactSearch {
 public:
  ExactSearch(const FlexspProblem& problem, FlexspSolution start, std::int64_t node_limit)
      : problem_(problem), best_(std::move(start)), nodes_left_(node_limit) {}

  void run(std::span<const GroupLayout> layouts) {
    LayoutBounds bounds(problem_);
    const auto bound = each_of(layouts, [&](const GroupLayout& layout) { return bounds.of(layout); });
    for (const std::size_t i : positions_by(layouts.size(), [&](std::size_t i) { return bound[i]; })) {
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
    // The least GPU time of documents i and later in this layout.
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
      group_of_[i] = static_cast<std::uint32_t>(g);
      branch(layout, view, load, i + 1, area + time * layout[g], std::max(slowest, view.time_of(load[g])));
      load[g] = before;
    }
  }

  const FlexspProblem& problem_;
  FlexspSolution best_;
  std::int64_t nodes_left_;
  std::vector<double> area_left_;
  std::vector<std::uint32_t> group_of_;
};

}  // namespace

FlexspSolution flexsp_exact(const FlexspProblem& problem, std::span<const GroupLayout> layouts,
                            std::int64_t node_limit) {
  ExactSearch search(problem, flexsp_heuristic(problem, layouts), node_limit);
  search.run(layouts);
  return search.take();
}

// Adds every way to fill `left` GPUs with groups of at most `degree` to `layout`, smallest groups first.
static void fill(int left, int degree, int unit, GroupLayout& layout, std::vector<GroupLayout>& all) {
  if (left == 0) {
    all.push_back(layout);
    return;
  }
  if (degree == 1) {
    layout.insert(layout.end(), static_cast<std::size_t>(left), 1);
    all.push_back(layout);
    layout.resize(layout.size() - static_cast<std::size_t>(left));
    return;
  }
  // Groups of this degree come in blocks of `unit` GPUs, so that a large grid has no more layouts than a
  // small one.
  const int block = std::max(degree, unit);
  const std::size_t before = layout.size();
  for (int gpus = 0; gpus <= left; gpus += block) {
    fill(left - gpus, degree / 2, unit, layout, all);
    if (gpus + block > left) break;
    layout.insert(layout.end(), static_cast<std::size_t>(block / degree), degree);
  }
  layout.resize(before);
}

// The number of layouts that fill() makes, up to `most`.
static std::size_t count_layouts(const CpGrid& grid, int unit, std::size_t most) {
  std::vector<std::size_t> ways(static_cast<std::size_t>(grid.gpus) + 1,
                                1);  // there is one way to fill g GPUs with single ones
  for (int degree = 2; degree <= grid.max_degree; degree *= 2) {
    const auto block = static_cast<std::size_t>(std::max(degree, unit));
    for (std::size_t g = block; g < ways.size(); ++g) ways[g] = std::min(most, ways[g] + ways[g - block]);
  }
  return ways.back();
}

std::vector<GroupLayout> group_layouts(const CpGrid& grid) {
  constexpr std::size_t kMostLayouts = 4096;
  int unit = 1;
  while (count_layouts(grid, unit, kMostLayouts) == kMostLayouts) unit *= 2;
  std::vector<GroupLayout> all;
  GroupLayout layout;
  fill(grid.gpus, grid.max_degree, unit, layout, all);
  std::ranges::stable_sort(all, std::ranges::greater{}, [](const GroupLayout& g) { return g.size(); });
  return all;
}

static constexpr double kFitsNone = std::numeric_limits<double>::infinity();

// The set's degrees that hold documents which need 2^needed ranks.
static std::size_t usable(std::size_t degrees, std::size_t needed) {
  return degrees >> needed << needed;
}

template <class Visit>
static void each_level(std::size_t degrees, Visit&& visit) {
  for (; degrees != 0; degrees &= degrees - 1) visit(static_cast<std::size_t>(std::countr_zero(degrees)));
}

LayoutBounds::LayoutBounds(const FlexspProblem& problem)
    : problem_(problem), areas_(std::size_t{1} << problem.times.size()) {
  for (std::size_t i = 0; i < problem.documents(); ++i) {
    if (i == 0 || problem.least_degree[i] != problem.least_degree[i - 1])
      alike_.push_back({i, i, exponent_of(problem.least_degree[i])});
    Alike& alike = alike_.back();
    alike.end = i + 1;
    const auto exceeds = [&](const std::vector<double>& times) { return times[i] > times[alike.first]; };
    if (i == alike.first || std::ranges::any_of(problem.times, exceeds)) slow_.push_back(i);
  }
  for (Alike& alike : alike_)
    for (std::size_t level = alike.needed; level + 1 < problem.times.size(); ++level)
      if (next_takes_more(alike, level)) alike.next_takes_more |= std::size_t{1} << level;
}

double LayoutBounds::area(std::size_t level, std::size_t document) const {
  return problem_.times[level][document] * static_cast<double>(std::size_t{1} << level);
}

bool LayoutBounds::next_takes_more(const Alike& alike, std::size_t level) const {
  for (std::size_t i = alike.first; i < alike.end; ++i)
    if (area(level + 1, i) < area(level, i)) return false;
  return true;
}

double LayoutBounds::least_area(Alike& alike, std::size_t degrees) const {
  std::size_t kept = 0;     // those that take least for some document
  std::size_t no_less = 0;  // the largest level up to which none takes less than the last one kept
  each_level(usable(degrees, alike.needed), [&](std::size_t level) {
    if (kept != 0 && level <= no_less) return;
    kept |= std::size_t{1} << level;
    no_less = level + static_cast<std::size_t>(std::countr_one(alike.next_takes_more >> level));
  });
  const auto [known, is_new] = alike.least_area.try_emplace(kept, 0);
  if (!is_new) return known->second;
  for (std::size_t i = alike.first; i < alike.end; ++i) {
    double least = kFitsNone;
    each_level(kept, [&](std::size_t level) { least = std::min(least, area(level, i)); });
    known->second += least;
  }
  return known->second;
}

const LayoutBounds::Areas& LayoutBounds::areas_of(std::size_t degrees) {
  Areas& areas = areas_[degrees];
  if (!areas.from_level.empty()) return areas;
  const std::size_t levels = problem_.times.size();
  areas.from_level.assign(levels, 0);
  for (const std::size_t i : slow_) {
    double time = kFitsNone;
    each_level(usable(degrees, exponent_of(problem_.least_degree[i])),
               [&](std::size_t level) { time = std::min(time, problem_.times[level][i]); });
    areas.slowest_document = std::max(areas.slowest_document, time);
  }
  double sum = 0;
  // Documents come longest first, so those that need some degree come before all that need less, and the sum
  // up to the last of them is theirs.
  for (Alike& alike : alike_) {
    sum += least_area(alike, degrees);
    for (std::size_t k = 0; k <= std::min(alike.needed, levels - 1); ++k) areas.from_level[k] = sum;
  }
  return areas;
}

double LayoutBounds::of(const GroupLayout& layout) {
  std::size_t degrees = 0;
  for (const int degree : layout) degrees |= std::size_t{1} << exponent_of(degree);
  const Areas& areas = areas_of(degrees);
  double bound = areas.slowest_document * problem_.grid.stages;
  double gpus = 0;  // GPUs of the groups so far, since layouts list the largest first
  for (std::size_t g = 0; g < layout.size(); ++g) {
    gpus += layout[g];
    if (g + 1 < layout.size() && layout[g + 1] == layout[g]) continue;
    // Documents that need more than the next smaller degree fit only these groups.
    const std::size_t level = g + 1 < layout.size() ? exponent_of(layout[g + 1]) + 1 : 0;
    bound = std::max(bound, areas.from_level[level] / gpus);
  }
  return bound;
}

}  // namespace equipoise
