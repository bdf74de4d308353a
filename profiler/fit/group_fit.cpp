#include "profiler/fit/group_fit.h"

#include <algorithm>
#include <cmath>

namespace equipoise {
namespace {

// The rank of each sample's shape among the distinct shapes.
std::vector<std::size_t> shape_ranks(const std::vector<std::vector<double>>& shapes) {
  std::vector<std::vector<double>> distinct = shapes;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<std::size_t> ranks;
  ranks.reserve(shapes.size());
  for (const std::vector<double>& shape : shapes)
    ranks.push_back(static_cast<std::size_t>(std::ranges::lower_bound(distinct, shape) - distinct.begin()));
  return ranks;
}

std::vector<double> fit_without(const FitProblem& problem, const std::vector<std::size_t>& folds,
                                std::size_t held_out) {
  std::vector<std::size_t> seen;
  for (std::size_t i = 0; i < folds.size(); ++i)
    if (folds[i] != held_out) seen.push_back(i);
  const auto residuals_at = [&](std::span<const double> parameters, std::span<double> out) {
    for (std::size_t i = 0; i < seen.size(); ++i) out[i] = problem.log_error(parameters, seen[i]);
  };
  return fit_parameters(problem.parameters, seen.size(), residuals_at, problem.options).values;
}

// The part of an error that the uncertainty of the published figure does not explain.
double beyond(double error, double uncertainty) {
  const double size = std::max(0.0, std::abs(error) - uncertainty);
  return error < 0 ? -size : size;
}

// Interpolates linearly between order statistics, as most tools do.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

GroupFit fit_group(const FitProblem& problem) {
  const std::vector<std::size_t> ranks = shape_ranks(problem.shapes);
  const auto error = [&problem](std::span<const double> parameters, std::size_t i) {
    const double unsure = problem.uncertainty.empty() ? 0 : problem.uncertainty[i];
    return beyond(std::expm1(problem.log_error(parameters, i)), unsure);
  };
  GroupFit fit;
  std::vector<std::size_t> folds;
  const std::size_t shapes = ranks.empty() ? 0 : 1 + *std::max_element(ranks.begin(), ranks.end());
  const bool all = shapes < kFolds || !problem.set_aside;
  for (const std::size_t rank : ranks) folds.push_back(all ? 0 : (rank + rank / kFolds) % kFolds);
  fit.parameters = fit_without(problem, folds, kHeldOutFold);
  for (std::size_t i = 0; i < folds.size(); ++i) {
    if (folds[i] != kHeldOutFold) continue;
    fit.held_out.push_back(i);
    fit.held_out_errors.push_back(error(fit.parameters, i));
  }
  folds = ranks;
  for (std::size_t& fold : folds) fold %= kMostCrossed;
  fit.crossed_errors.resize(folds.size());
  const std::size_t last = folds.empty() ? 0 : *std::max_element(folds.begin(), folds.end());
  for (std::size_t fold = 0; fold <= last; ++fold) {
    const std::vector<double> parameters = fit_without(problem, folds, fold);
    for (std::size_t i = 0; i < folds.size(); ++i)
      if (folds[i] == fold) fit.crossed_errors[i] = error(parameters, i);
  }
  return fit;
}

ErrorSummary summarize(std::vector<double> errors) {
  ErrorSummary summary;
  summary.count = errors.size();
  std::sort(errors.begin(), errors.end());
  summary.bias = quantile(errors, 0.5);
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  summary.median = quantile(errors, 0.5);
  summary.p90 = quantile(errors, 0.9);
  return summary;
}

}  // namespace equipoise
