#include <algorithm>
#include <bit>
#include <limits>

#include "policies/cp_degree/flexsp_problem.h"

namespace equipoise {
namespace {

std::size_t exponent_of(int degree) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(degree)));
}

// Adds every way to fill `left` GPUs with groups of at most `degree` to `layout`, smallest groups first.
void fill(int left, int degree, int unit, GroupLayout& layout, std::vector<GroupLayout>& all) {
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
  // small.
  const int block = std::max(degree, unit);
  const std::size_t before = layout.size();
  for (int gpus = 0; gpus <= left; gpus += block) {
    fill(left - gpus, degree / 2, unit, layout, all);
    if (gpus + block > left) break;
    layout.insert(layout.end(), static_cast<std::size_t>(block / degree), degree);
  }
  layout.resize(before);
}

// Number of layouts that fill() makes, up to `most`.
std::size_t count_layouts(const CpGrid& grid, int unit, std::size_t most) {
  std::vector<std::size_t> ways(static_cast<std::size_t>(grid.gpus) + 1,
                                1);  // to fill g GPUs with single ones
  for (int degree = 2; degree <= grid.max_degree; degree *= 2) {
    const auto block = static_cast<std::size_t>(std::max(degree, unit));
    for (std::size_t g = block; g < ways.size(); ++g) ways[g] = std::min(most, ways[g] + ways[g - block]);
  }
  return ways.back();
}

}  // namespace

std::vector<GroupLayout> group_layouts(const CpGrid& grid) {
  constexpr std::size_t kMostLayouts = 4096;
  int unit = 1;
  while (count_layouts(grid, unit, kMostLayouts) == kMostLayouts) unit *= 2;
  std::vector<GroupLayout> all;
  GroupLayout layout;
  fill(grid.gpus, grid.max_degree, unit, layout, all);
  std::stable_sort(all.begin(), all.end(),
                   [](const GroupLayout& a, const GroupLayout& b) { return a.size() > b.size(); });
  return all;
}

LayoutBounds::LayoutBounds(const FlexspProblem& problem)
    : problem_(problem), areas_(std::size_t{1} << problem.times.size()) {}

const LayoutBounds::Areas& LayoutBounds::areas_of(std::size_t degrees) {
  Areas& areas = areas_[degrees];
  if (!areas.from_level.empty()) return areas;
  const std::size_t levels = problem_.times.size();
  areas.from_level.assign(levels, 0);
  for (std::size_t i = 0; i < problem_.documents(); ++i) {
    const std::size_t needed = exponent_of(problem_.least_degree[i]);
    double area = std::numeric_limits<double>::infinity();
    double time = std::numeric_limits<double>::infinity();
    for (std::size_t k = needed; k < levels; ++k) {
      if ((degrees >> k & 1) == 0) continue;
      time = std::min(time, problem_.times[k][i]);
      area = std::min(area, problem_.times[k][i] * static_cast<double>(std::size_t{1} << k));
    }
    for (std::size_t k = 0; k <= std::min(needed, levels - 1); ++k) areas.from_level[k] += area;
    areas.slowest_document = std::max(areas.slowest_document, time);
  }
  return areas;
}

double LayoutBounds::of(const GroupLayout& layout) {
  std::size_t degrees = 0;
  for (const int degree : layout) degrees |= std::size_t{1} << exponent_of(degree);
  const Areas& areas = areas_of(degrees);
  double bound = areas.slowest_document * problem_.grid.stages;
  double gpus = 0;  // of the groups so far: layouts list the largest first
  for (std::size_t g = 0; g < layout.size(); ++g) {
    gpus += layout[g];
    if (g + 1 < layout.size() && layout[g + 1] == layout[g]) continue;
    // Documents that need more than the next smaller degree have only these groups.
    const std::size_t level = g + 1 < layout.size() ? exponent_of(layout[g + 1]) + 1 : 0;
    bound = std::max(bound, areas.from_level[level] / gpus);
  }
  return bound;
}

}  // namespace equipoise
