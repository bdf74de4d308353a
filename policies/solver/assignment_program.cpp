#include "policies/solver/assignment_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace equipoise {
namespace {

constexpr double kMeanBin = 1000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

AssignmentProgram::AssignmentProgram(const AssignmentProblem& problem)
    : problem_(problem), order_(problem.weight.size()) {
  scale = kMeanBin * static_cast<double>(problem.bins) /
          std::accumulate(problem.weight.begin(), problem.weight.end(), 0.0);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  first_column_.resize(order_.size() + 1, 1);  // column 0 is z
  for (std::size_t k = 0; k < order_.size(); ++k) first_column_[k + 1] = first_column_[k] + bins_of(k);

  const auto count = static_cast<std::size_t>(first_column_.back());
  column_lower.assign(count, 0);
  column_upper.assign(count, 1);
  column_cost.assign(count, 0);
  column_cost[0] = 1;
  column_lower[0] = lower_bound(problem) * scale;
  column_upper[0] = kInfinity;
  for (std::size_t k = 0; k < order_.size(); ++k) {
    for (int b = 0; b < bins_of(k); ++b) {
      column.push_back(first_column_[k] + b);
      value.push_back(1);
    }
    close_row(1, 1);
  }
  for (std::size_t b = 0; b < problem.bins; ++b) {
    column.push_back(0);
    value.push_back(-1);
    for (std::size_t k = b; k < order_.size(); ++k) {
      column.push_back(first_column_[k] + static_cast<int>(b));
      value.push_back(problem.weight[order_[k]] * scale);
    }
    close_row(-kInfinity, 0);
    for (std::size_t k = b; k < order_.size(); ++k) {
      column.push_back(first_column_[k] + static_cast<int>(b));
      value.push_back(static_cast<double>(problem.tokens[order_[k]]));
    }
    close_row(-kInfinity, static_cast<double>(problem.capacity));
  }
}

int AssignmentProgram::bins_of(std::size_t k) const {
  return static_cast<int>(std::min(k + 1, problem_.bins));
}

void AssignmentProgram::close_row(double lower, double upper) {
  row_begin.push_back(static_cast<int>(column.size()));
  row_lower.push_back(lower);
  row_upper.push_back(upper);
}

std::vector<double> AssignmentProgram::columns_of(const BinOf& bin_of, double objective) const {
  constexpr int kUnnamed = -1;
  std::vector<double> values(static_cast<std::size_t>(first_column_.back()), 0);
  std::vector<int> name(problem_.bins, kUnnamed);
  int next = 0;
  for (std::size_t k = 0; k < order_.size(); ++k) {
    int& renamed = name[bin_of[order_[k]]];
    if (renamed == kUnnamed) renamed = next++;
    values[static_cast<std::size_t>(first_column_[k] + renamed)] = 1;
  }
  values[0] = objective * scale;
  return values;
}

BinOf AssignmentProgram::assignment_of(const double* values) const {
  BinOf bin_of(order_.size(), 0);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const double* const first = values + first_column_[k];
    const double* const end = values + first_column_[k + 1];
    bin_of[order_[k]] = static_cast<std::uint32_t>(std::max_element(first, end) - first);
  }
  return bin_of;
}

void take_found(const AssignmentProblem& problem, const BinOf& found, AssignmentResult& result) {
  const double objective = heaviest_bin(problem, found);
  if (!within_capacity(problem, found) || objective >= result.objective) return;
  result.bin_of = found;
  result.objective = objective;
}

void take_bound(double bound, AssignmentResult& result) {
  if (std::isfinite(bound)) result.bound = std::max(result.bound, std::min(bound, result.objective));
}

}  // namespace equipoise
