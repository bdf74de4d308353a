#include "policies/solver/assignment.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace equipoise {

std::vector<double> bin_weights(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<double> weights(problem.bins, 0);
  for (std::size_t i = 0; i < bin_of.size(); ++i) weights[bin_of[i]] += problem.weight[i];
  return weights;
}

std::vector<std::int64_t> bin_tokens(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<std::int64_t> tokens(problem.bins, 0);
  for (std::size_t i = 0; i < bin_of.size(); ++i) tokens[bin_of[i]] += problem.tokens[i];
  return tokens;
}

double heaviest_bin(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<double> weights = bin_weights(problem, bin_of);
  return *std::max_element(weights.begin(), weights.end());
}

double sum_over_steps(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<double> weights = bin_weights(problem, bin_of);
  std::sort(weights.begin(), weights.end(), std::greater<>());
  double sum = 0;
  for (std::size_t b = 0; b < weights.size(); b += problem.step_bins()) sum += weights[b];
  return sum;
}

// The heaviest bin of a step is no lighter than the mean of its bins. Documents of more than half a capacity
// stand in bins of their own, so the bins in the places 0, N, 2N, ... of the sorted list are no lighter than
// those documents are.
double lower_bound(const AssignmentProblem& problem) {
  double sum = 0;
  double most = 0;
  std::vector<double> alone;
  for (std::size_t i = 0; i < problem.weight.size(); ++i) {
    sum += problem.weight[i];
    most = std::max(most, problem.weight[i]);
    if (2 * problem.tokens[i] > problem.capacity) alone.push_back(problem.weight[i]);
  }
  std::sort(alone.begin(), alone.end(), std::greater<>());
  double of_leaders = 0;
  for (std::size_t b = 0; b < alone.size(); b += problem.step_bins()) of_leaders += alone[b];
  return std::max({most, of_leaders, sum / static_cast<double>(problem.step_bins())});
}

bool within_capacity(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
  return *std::max_element(tokens.begin(), tokens.end()) <= problem.capacity;
}

bool assign_greedily(const AssignmentProblem& problem, BinOf& bin_of) {
  std::vector<std::size_t> order(problem.weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  std::vector<double> weights(problem.bins, 0);
  std::vector<std::int64_t> tokens(problem.bins, 0);
  bin_of.assign(order.size(), 0);
  for (const std::size_t i : order) {
    std::size_t best = problem.bins;
    for (std::size_t b = 0; b < problem.bins; ++b) {
      if (tokens[b] + problem.tokens[i] > problem.capacity) continue;
      if (best == problem.bins || weights[b] < weights[best]) best = b;
    }
    if (best == problem.bins) return false;
    bin_of[i] = static_cast<std::uint32_t>(best);
    weights[best] += problem.weight[i];
    tokens[best] += problem.tokens[i];
  }
  return true;
}

}  // namespace equipoise
