#include "policies/solver/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policies/base/index.h"

namespace equipoise {
namespace {

constexpr double kMeanBin = 1000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1 + 1e-9;

}  // namespace

AssignmentProgram::AssignmentProgram(const AssignmentProblem& problem)
    : problem_(problem), order_(problem.weight.size()) {
  scale = kMeanBin * static_cast<double>(problem.bins) /
          std::accumulate(problem.weight.begin(), problem.weight.end(), 0.0);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  add_columns();
  add_rows();
}

void AssignmentProgram::add_columns() {
  const std::size_t steps = problem_.steps();
  first_column_.assign(1, static_cast<int>(steps));
  for (std::size_t k = 0; k < order_.size(); ++k) {
    for (std::uint32_t bin = 0; bin < problem_.bins; ++bin)
      if (bin / problem_.step_bins() + bin % problem_.step_bins() <= k) bins_of_.push_back(bin);
    first_column_.push_back(static_cast<int>(steps + bins_of_.size()));
  }
  const auto count = static_cast<std::size_t>(first_column_.back());
  column_lower.assign(count, 0);
  column_upper.assign(count, 1);
  column_cost.assign(count, 0);
  for (std::size_t s = 0; s < steps; ++s) {
    column_cost[s] = 1;
    column_upper[s] = problem_.heaviest_allowed * scale * kRounding;
  }
  // The heaviest document stands in the first step; a single step carries the whole bound.
  column_lower[0] = (steps == 1       ? lower_bound(problem_)
                     : order_.empty() ? 0
                                      : problem_.weight[order_[0]]) *
                    scale;
}

int AssignmentProgram::column_of(std::size_t k, std::uint32_t bin) const {
  const int base = first_column_.front();
  const auto first = bins_of_.begin() + (first_column_[k] - base);
  const auto end = bins_of_.begin() + (first_column_[k + 1] - base);
  const auto found = std::lower_bound(first, end, bin);
  return found != end && *found == bin ? base + static_cast<int>(found - bins_of_.begin()) : -1;
}

void AssignmentProgram::add_rows() {
  for (std::size_t k = 0; k < order_.size(); ++k) {
    for (int c = first_column_[k]; c < first_column_[k + 1]; ++c) {
      column.push_back(c);
      value.push_back(1);
    }
    close_row(1, 1);
  }
  for (std::uint32_t bin = 0; bin < problem_.bins; ++bin) {
    column.push_back(static_cast<int>(bin / problem_.step_bins()));
    value.push_back(-1);
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const int c = column_of(k, bin);
      if (c < 0) continue;
      column.push_back(c);
      value.push_back(problem_.weight[order_[k]] * scale);
    }
    close_row(-kInfinity, 0);
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const int c = column_of(k, bin);
      if (c < 0) continue;
      column.push_back(c);
      value.push_back(static_cast<double>(problem_.tokens[order_[k]]));
    }
    close_row(-kInfinity, static_cast<double>(problem_.capacity));
  }
  if (steps() == 1) return;
  for (int s = 0; s < steps(); ++s) {
    column.push_back(s);
    value.push_back(1);
  }
  close_row(lower_bound(problem_) * scale, kInfinity);
}

void AssignmentProgram::close_row(double lower, double upper) {
  row_begin.push_back(static_cast<int>(column.size()));
  row_lower.push_back(lower);
  row_upper.push_back(upper);
}

std::vector<double> AssignmentProgram::columns_of(const BinOf& bin_of) const {
  const std::size_t n = problem_.step_bins();
  const std::vector<double> weights = bin_weights(problem_, bin_of);
  std::vector<std::size_t> heaviest_first(problem_.bins);
  std::iota(heaviest_first.begin(), heaviest_first.end(), std::size_t{0});
  std::stable_sort(heaviest_first.begin(), heaviest_first.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<std::size_t> step_of(problem_.bins);
  for (std::size_t p = 0; p < heaviest_first.size(); ++p) step_of[heaviest_first[p]] = p / n;

  constexpr std::size_t kUnnamed = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> step_name(problem_.steps(), kUnnamed);
  std::vector<std::size_t> bin_name(problem_.bins, kUnnamed);  // inside its step
  std::vector<std::size_t> bins_named(problem_.steps(), 0);
  std::size_t steps_named = 0;
  std::vector<double> values(static_cast<std::size_t>(columns()), 0);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const std::uint32_t bin = bin_of[order_[k]];
    const std::size_t step = step_of[bin];
    if (step_name[step] == kUnnamed) step_name[step] = steps_named++;
    if (bin_name[bin] == kUnnamed) bin_name[bin] = bins_named[step]++;
    const auto renamed = static_cast<std::uint32_t>(step_name[step] * n + bin_name[bin]);
    values[at(column_of(k, renamed))] = 1;
    double& z = values[step_name[step]];
    z = std::max(z, weights[bin] * scale);
  }
  return values;
}

BinOf AssignmentProgram::assignment_of(const double* values) const {
  BinOf bin_of(order_.size(), 0);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const double* const first = values + first_column_[k];
    const double* const end = values + first_column_[k + 1];
    const auto chosen = std::max_element(first, end) - values - first_column_.front();
    bin_of[order_[k]] = bins_of_[at(chosen)];
  }
  return bin_of;
}

bool take_found(const AssignmentProblem& problem, const BinOf& found, AssignmentResult& result) {
  constexpr double kExact = 1 + 1e-12;
  if (!within_capacity(problem, found)) return false;
  if (heaviest_bin(problem, found) > problem.heaviest_allowed * kExact) return false;
  const double objective = sum_over_steps(problem, found);
  if (objective >= result.objective) return true;
  result.bin_of = found;
  result.objective = objective;
  return true;
}

void take_bound(double bound, AssignmentResult& result) {
  if (std::isfinite(bound)) result.bound = std::max(result.bound, std::min(bound, result.objective));
}

}  // namespace equipoise
